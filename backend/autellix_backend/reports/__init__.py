"""The messages of an engine to its gateway: the report of a call, and the snapshot of its queues."""
