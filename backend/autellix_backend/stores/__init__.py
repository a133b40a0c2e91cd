"""Stores of what the gateway knows: programs, their calls, and sessions."""
