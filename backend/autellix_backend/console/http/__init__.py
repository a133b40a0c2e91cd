"""The endpoints of the console."""
