"""Values of labels from bounded sets: whoever sends calls must not be able to add series without number."""

from __future__ import annotations

from collections.abc import Iterable

OTHER = "other"


class KnownLabels:
    """The values that an operator named; every other one is `other`."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = frozenset(values)

    def of(self, value: str | None) -> str:
        """Return the label of a value."""
        return value if value is not None and value in self._values else OTHER


class LearnedLabels:
    """The first values that proved to exist, at most so many; every other one is `other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: set[str] = set()

    def of(self, value: str | None, *, is_known: bool) -> str:
        """Return the label of a value, which is learned if it `is_known` to exist."""
        if value is None:
            return OTHER
        if is_known and len(self._values) < self._limit:
            self._values.add(value)
        return value if value in self._values else OTHER
