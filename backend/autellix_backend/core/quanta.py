"""The calls whose quantum is used up, or whose size has changed, until the next tick moves them."""

from __future__ import annotations

from autellix_backend.core.call import Call


class QuantumWatch:
    """The calls that the next tick moves, by id."""

    def __init__(self) -> None:
        self._due: dict[str, Call] = {}
        self._deferred: dict[str, Call] = {}

    @property
    def is_due(self) -> bool:
        """Whether the next tick moves a call because of its quantum or its size."""
        return bool(self._due)

    @property
    def has_deferred(self) -> bool:
        """Whether the last tick deferred a call until it has decoded some more."""
        return bool(self._deferred)

    def add(self, call: Call) -> None:
        """Have the next tick move the call."""
        self._due[call.call_id] = call

    def defer(self, call: Call) -> None:
        """Leave a popped call to the next tick."""
        self._due[call.call_id] = self._deferred[call.call_id] = call

    def forget(self, call: Call) -> bool:
        """Drop a call that leaves; return whether the next tick would have moved it."""
        self._deferred.pop(call.call_id, None)
        return self._due.pop(call.call_id, None) is not None

    def pop(self) -> dict[str, Call]:
        """Return the calls to move, and clear them."""
        due, self._due, self._deferred = self._due, {}, {}
        return due

    def check(self) -> None:
        """Assert the invariants of the watch."""
        assert self._deferred.keys() <= self._due.keys()
