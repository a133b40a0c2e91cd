"""The order of an engine's queue: which call is sent next.

ArrivalOrdering    first come, first served, without a bound on calls at the engine, which orders them itself
PolicyOrdering     a bounded number of calls at the engine; the scheduler's own machine picks the next one

Pure: time is an argument, and nothing waits here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """How long a call was queued."""

    wait_s: float
    counted_s: float
    """The part that counts for its program's wait/service ratio: the time since its last promotion."""


class Ordering(Protocol):
    """The queued calls of an engine and those that were sent to it."""

    def enter(self, arrival: Arrival, now: float) -> None:
        """Queue a call, whose id must not be in use."""
        ...

    def next(self, now: float) -> str | None:
        """Return the key of the queued call to send next; None if none is queued or no slot is free."""
        ...

    def go(self, key: str, now: float) -> Wait:
        """Give a queued call a slot; return how long it waited."""
        ...

    def leave(self, key: str, now: float) -> Wait | None:
        """Remove a call; return how long it waited if it was still queued."""
        ...


class ArrivalOrdering:
    """First come, first served, without a bound on sent calls."""

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}

    def enter(self, arrival: Arrival, now: float) -> None:
        """Append the call."""
        self._waiting[arrival.call_id] = now

    def next(self, now: float) -> str | None:  # noqa: ARG002
        """Return the first."""
        return next(iter(self._waiting), None)

    def go(self, key: str, now: float) -> Wait:
        """Forget the call."""
        waited_s = now - self._waiting.pop(key)
        return Wait(wait_s=waited_s, counted_s=waited_s)

    def leave(self, key: str, now: float) -> Wait | None:
        """Forget the call if it is still queued."""
        return self.go(key, now) if key in self._waiting else None


class PolicyOrdering:
    """Algorithm 1 over the calls at the gateway, for an engine that cannot order them.

    A sent call is never preempted. It is charged the time that it holds its slot, because the engine's steps
    are unknown here. The machine decides the order, the tenants' shares and the promotion of starving calls.
    """

    def __init__(self, config: SchedulerConfig, slots: int) -> None:
        self._machine = Machine(config)
        self._slots = slots
        self._charged_until_s: dict[str, float] = {}
        """By sent call."""

    def enter(self, arrival: Arrival, now: float) -> None:
        """Queue the call by its program's attained service."""
        self._machine.arrive(arrival, now)

    def next(self, now: float) -> str | None:
        """Return the first queued call in the machine's order, if a slot is free."""
        if len(self._charged_until_s) >= self._slots:
            return None
        self._charge(now)
        self._machine.tick(now)
        return next((call.call_id for call in self._machine if not call.is_running), None)

    def go(self, key: str, now: float) -> Wait:
        """Give the call a slot."""
        call = self._machine.call(key)
        wait = Wait(wait_s=call.wait_at(now), counted_s=call.unpaid_wait_at(now))
        self._machine.start(key, now)
        self._charged_until_s[key] = now
        return wait

    def leave(self, key: str, now: float) -> Wait | None:
        """Free the call's slot, if it has one; forget its program with its last call here."""
        self._charge(now)
        has_gone = self._charged_until_s.pop(key, None) is not None
        record = self._machine.finish(key, now) if has_gone else self._machine.abort(key, now)
        if not self._machine.table[record.program_id].active_calls:
            self._machine.table.end(record.program_id)
        return None if has_gone else Wait(wait_s=record.wait_s, counted_s=record.table_wait_s)

    def check(self) -> None:
        """Assert the invariants."""
        self._machine.check()
        running = {call.call_id for call in self._machine if call.is_running}
        assert running == self._charged_until_s.keys()
        assert len(running) <= self._slots
        assert all(program.active_calls for program in self._machine.table.programs())

    def _charge(self, now: float) -> None:
        for key, until_s in self._charged_until_s.items():
            self._machine.charge(key, now - until_s, now)
            self._charged_until_s[key] = now
