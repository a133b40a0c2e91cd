"""Why a call waits, what programs look like, and the feed of events."""
