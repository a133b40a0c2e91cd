"""A call inside the scheduler, and the facts that the scheduler reports about calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autellix_backend.core.errors import IllegalMoveError

__all__ = ["Call", "CallRecord", "CallState", "ChangeReason", "LevelChange"]


class CallState(StrEnum):
    """Where an active call is."""

    WAITING = "waiting"
    RUNNING = "running"


class ChangeReason(StrEnum):
    """Why a call changed its place."""

    DEMOTION = "demotion"
    PROMOTION = "promotion"
    ROTATION = "rotation"
    """Its turn is over; the level stays."""
    RESIZING = "resizing"
    """Its expected size is another; the level stays."""


_ROUNDING_S = 1e-9
# The legal moves of an active call; it may leave (finish, abort) from either state.
_MOVES = {
    ("start", CallState.WAITING): CallState.RUNNING,
    ("preempt", CallState.RUNNING): CallState.WAITING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A call has another place in the order: in another level, or elsewhere in its own."""

    call_id: str
    old: int
    new: int
    reason: ChangeReason


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """What became of a call that finished or was aborted."""

    call_id: str
    program_id: str
    thread_id: str
    arrival_s: float
    finish_s: float
    wait_s: float
    """All the time it waited."""
    table_wait_s: float
    """The waiting charged to its program: that since its last promotion."""
    service_s: float
    """All the model time it received."""
    level: int
    preemptions: int
    demotions: int
    promotions: int
    inherited_service_s: float
    is_aborted: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One active call.

    `wait_s` and `service_s` only grow. A promotion moves the marks `wait_mark_s` and `service_mark_s` up
    to them; the pseudo-code's c.wait and c.model_time, which it resets, are the amounts above the marks.
    """

    call_id: str
    program_id: str
    thread_id: str
    tenant: str = ""
    arrival_s: float
    inherited_service_s: float
    state: CallState = CallState.WAITING
    level: int = 1
    seq: int = 0
    size_s: float = 0.0
    """What it is ordered by under a policy of sizes; zero under the others."""
    expected_s: float | None = None
    """What was expected to come when it arrived."""
    quantum_s: float = 0.0
    """What is left of the level's quantum; negative when a step overran it."""
    waiting_since_s: float
    running_since_s: float | None = None
    """When it last got a slot."""
    wait_s: float = 0.0
    wait_mark_s: float = 0.0
    service_s: float = 0.0
    service_mark_s: float = 0.0
    catch_up_s: float = 0.0
    """Since it last got a slot: model time of the steps that read its context, less that of the others."""
    preemptions: int = 0
    demotions: int = 0
    promotions: int = 0

    @property
    def is_running(self) -> bool:
        """Whether the call holds a slot."""
        return self.state is CallState.RUNNING

    def start(self, now: float) -> None:
        """Give the call a slot."""
        self.wait_s = self.wait_at(now)
        self.state = self._move("start")
        self.running_since_s = now
        self.catch_up_s = 0.0

    def preempt(self, now: float) -> None:
        """Take the call's slot away."""
        self.state = self._move("preempt")
        self.waiting_since_s = now
        self.preemptions += 1

    def wait_at(self, now: float) -> float:
        """Return all the waiting up to now."""
        return self.wait_s if self.is_running else self.wait_s + (now - self.waiting_since_s)

    def unpaid_wait_at(self, now: float) -> float:
        """Return the waiting since the last promotion: W_c."""
        return self.wait_at(now) - self.wait_mark_s

    @property
    def is_catching_up(self) -> bool:
        """Whether the call has not yet got as much out of its slot as reading its context cost."""
        return self.is_running and self.catch_up_s > _ROUNDING_S

    @property
    def unpaid_service_s(self) -> float:
        """The model time since the last promotion: T_c."""
        return self.service_s - self.service_mark_s

    def reset_ratio(self, now: float) -> None:
        """Set W_c and T_c to zero."""
        self.wait_mark_s = self.wait_at(now)
        self.service_mark_s = self.service_s

    def record(self, now: float, *, is_aborted: bool) -> CallRecord:
        """Return what became of the call, which leaves now."""
        return CallRecord(
            call_id=self.call_id,
            program_id=self.program_id,
            thread_id=self.thread_id,
            arrival_s=self.arrival_s,
            finish_s=now,
            wait_s=self.wait_at(now),
            table_wait_s=self.unpaid_wait_at(now),
            service_s=self.service_s,
            level=self.level,
            preemptions=self.preemptions,
            demotions=self.demotions,
            promotions=self.promotions,
            inherited_service_s=self.inherited_service_s,
            is_aborted=is_aborted,
        )

    def _move(self, move: str) -> CallState:
        try:
            return _MOVES[move, self.state]
        except KeyError:
            story = f"level {self.level}, {self.preemptions} preemptions, {self.service_s:.6f} s of service"
            raise IllegalMoveError(self.call_id, move, self.state, story) from None
