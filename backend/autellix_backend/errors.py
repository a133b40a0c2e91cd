"""The base of the errors that a command shows without a traceback; standard library only."""

from __future__ import annotations


class CommandError(Exception):
    """A failure that the user can act on; its message is complete, and `exit_code` ends the command."""

    exit_code = 2
