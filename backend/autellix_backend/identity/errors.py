"""The error of what a request says of itself."""

from __future__ import annotations


class InvalidIdentityError(ValueError):
    """A header of ours, or a value whose contract calls it an error, is malformed; `field` names it."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field
