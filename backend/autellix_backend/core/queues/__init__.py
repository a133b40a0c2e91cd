"""The queues that policies order their calls with."""
