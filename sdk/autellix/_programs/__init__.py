"""The programs of this process, their threads, and which of them is running."""
