"""What a user says about a program: one record, from `autellix.program()` to the headers of its calls.

A new hint is a field here, with its check and its header, and an argument of `autellix.program()`.
"""

from __future__ import annotations

from autellix_wire import headers as names
from autellix_wire.ids import check_id
from autellix_wire.priorities import PRIORITIES


class ProgramHints:
    """The hints on a program; what is None is not known."""

    __slots__ = ("expected_calls", "expected_tokens", "group", "priority")

    def __init__(
        self,
        *,
        group: str | None = None,
        priority: str | None = None,
        expected_calls: int | None = None,
        expected_tokens: int | None = None,
    ) -> None:
        """Check the hints.

        Raises:
            TypeError: the group is not text.
            ValueError: any is not what it has to be.
        """
        self.group = None if group is None else check_id(check_name(group, "program"), "group")
        self.priority = _check_priority(priority)
        self.expected_calls = _check_expected(expected_calls, "expected_calls")
        self.expected_tokens = _check_expected(expected_tokens, "expected_tokens")

    def over(self, other: ProgramHints) -> ProgramHints:
        """Return these, and from the others what they leave open."""
        if self is NO_HINTS or other is NO_HINTS:
            return other if self is NO_HINTS else self
        return ProgramHints(
            **{name: getattr(self, name) or getattr(other, name) for name in ProgramHints.__slots__}
        )

    def add_lasting(self, headers: dict[str, str]) -> None:
        """Add the headers that each request of the program has."""
        if self.group is not None:
            headers[names.GROUP] = self.group
        if self.priority is not None:
            headers[names.PRIORITY] = self.priority

    def add_expected(self, headers: dict[str, str], made: int) -> None:
        """Add what a call expects from itself on, after some that were made.

        The calls are counted down here; the tokens are sent once, and counted down by the backend.
        """
        if self.expected_calls is not None and self.expected_calls > made:
            headers[names.EXPECTED_CALLS] = str(self.expected_calls - made)
        if self.expected_tokens is not None and made == 0:
            headers[names.EXPECTED_TOKENS] = str(self.expected_tokens)


def check_name(name: object, what: str) -> str:
    """Return the name of a scope of `autellix.{what}`.

    Raises:
        TypeError: it is not text.
    """
    if callable(name):
        raise TypeError(f"@autellix.{what} lacks its parentheses; expected @autellix.{what}()")
    if not isinstance(name, str):
        raise TypeError(f"autellix.{what}() got a {type(name).__name__}; expected text")
    return name


def shown(value: object) -> str:
    """Return how an error shows a value."""
    return repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _check_expected(value: int | None, field: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{field} is {shown(value)}; expected a whole number above zero")
    return value


def _check_priority(value: str | None) -> str | None:
    if value is not None and not (isinstance(value, str) and value in PRIORITIES):
        raise ValueError(f"priority is {shown(value)}; expected one of {', '.join(PRIORITIES)}")
    return value


NO_HINTS = ProgramHints()
