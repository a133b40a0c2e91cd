"""Label values from bounded sets, so that callers cannot add series without bound."""

from __future__ import annotations

OTHER = "other"


class LearnedLabels:
    """The first values known to exist, up to a limit; all others are `other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: set[str] = set()

    def of(self, value: str | None, *, is_known: bool) -> str:
        """Return the label of a value; one that `is_known` to exist is learned."""
        if value is None:
            return OTHER
        if is_known and len(self._values) < self._limit:
            self._values.add(value)
        return value if value in self._values else OTHER
