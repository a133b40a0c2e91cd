"""The sessions of this process at the backends it calls, and which backends those are."""
