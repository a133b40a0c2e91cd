"""A call inside the scheduler, and the facts that the scheduler reports about calls."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from autellix_backend.core.errors import IllegalMoveError
from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.place import Boosts, Place


class ChangeReason(StrEnum):
    """Why a call moved in its queue."""

    DEMOTION = "demotion"
    PROMOTION = "promotion"
    ROTATION = "rotation"
    """A used-up quantum; the level stays."""
    RESIZING = "resizing"
    """A changed expected size; the level stays."""


_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A call has moved: to another level, or within its own."""

    call_id: str
    old: int
    new: int
    reason: ChangeReason


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a call ended and what it received."""

    call_id: str
    program_id: str
    thread_id: str
    arrival_s: float
    finish_s: float
    wait_s: float
    """All its waiting."""
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
    inactive_s: float = 0.0
    """The part of its waiting in which its program was inactive."""


@dataclass(slots=True, eq=False)
class CallGroup:
    """The queued calls of one program, in order of arrival, where they all have the program's key."""

    place: Place
    """The place of the program."""
    boosts: Boosts
    # A plain dict keeps holes where calls left, and the search for the first would visit them all.
    calls: OrderedDict[str, Call] = field(default_factory=OrderedDict)

    @property
    def first(self) -> Call:
        """The first call."""
        return next(iter(self.calls.values()))

    @property
    def key(self) -> float:
        """The program's present key."""
        return self.place.base + self.boosts.of(self.place.work_class)


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
    weight: float = 1.0
    """The tenant's share of the engine."""
    new_tokens: int = 0
    """Prompt tokens that no earlier call of its program holds."""
    is_admitted: bool = True
    """Whether it is in its queue; else it waits until admission activates its program."""
    is_pinned: bool = False
    """Whether it waits with KV memory of its own, as while it is loaded: then it stays admitted."""
    is_paused: bool = False
    """Whether it waits for its client to send more, and not for a slot."""
    arrival_s: float
    inherited_service_s: float
    path_id: str | None = None
    """The name by which later calls know it as their parent, if that is not its id here."""
    is_running: bool = False
    """Whether it holds a slot."""
    level: int = 1
    own_key: float = 0.0
    """The key of the call where it is in no group."""
    group: CallGroup | None = None
    """The calls that share its key, in a queue by program."""
    seq: int = 0
    size_s: float = 0.0
    """The service still expected, which counts against starvation; zero where the policy orders by levels."""
    expected_s: float | None = None
    """The service that was expected when it arrived."""
    hints: Hints = NO_HINTS
    """What its client says of its program."""
    quantum_s: float = 0.0
    """The rest of the level's quantum; negative when a step overran it."""
    is_quantum_binding: bool = False
    """Whether the call moves once its quantum is used up."""
    waiting_since_s: float
    running_since_s: float | None = None
    """When it last got a slot."""
    wait_s: float = 0.0
    inactive_since_s: float | None = None
    """Since when its program has been inactive; None while the call is in its queue."""
    inactive_s: float = 0.0
    wait_mark_s: float = 0.0
    service_s: float = 0.0
    service_mark_s: float = 0.0
    prefill_debt_s: float = 0.0
    """Model time (s) of its prefill steps less that of its decode steps, since it last got a slot."""
    reached_tokens: int = 0
    """The most tokens that it had computed when it lost its slot."""
    behind_tokens: int = 0
    """The part of the reached tokens that the call has to compute again."""
    new_steps: int = 0
    """Steps in which it computed what it never had before."""
    lost_steps: float = 0.0
    """The price of its resumes so far, by `core.preemption.StepCosts`."""
    preemptions: int = 0
    demotions: int = 0
    promotions: int = 0

    @property
    def key(self) -> float:
        """Its order within the level, before `seq`; zero where a level is first come, first served."""
        return self.own_key if self.group is None else self.group.key

    @property
    def rank(self) -> tuple[int, float, int]:
        """The call's place (level, key, seq) in the total order of its tenant; lower runs first."""
        return (self.level, self.key, self.seq)

    @property
    def is_waiting(self) -> bool:
        """Whether the call waits for a slot."""
        return not (self.is_running or self.is_paused)

    @property
    def has_prefill_debt(self) -> bool:
        """Whether the call has decoded for less time than it prefilled since it got its slot."""
        return self.is_running and self.prefill_debt_s > _ROUNDING_S

    @property
    def unpaid_service_s(self) -> float:
        """The model time since the last promotion: T_c."""
        return self.service_s - self.service_mark_s

    def wait_at(self, now: float) -> float:
        """Return all the waiting up to now."""
        return self.wait_s + (now - self.waiting_since_s) if self.is_waiting else self.wait_s

    def unpaid_wait_at(self, now: float) -> float:
        """Return the waiting since the last promotion: W_c."""
        return self.wait_at(now) - self.wait_mark_s

    def inactive_at(self, now: float) -> float:
        """Return the waiting up to now in which its program was inactive."""
        since_s = self.inactive_since_s
        return self.inactive_s if since_s is None else self.inactive_s + (now - since_s)

    def enter(self, now: float) -> None:
        """Admit the call to its queue."""
        self.inactive_s = self.inactive_at(now)
        self.inactive_since_s = None

    def withdraw(self, now: float) -> None:
        """Keep the call out of its queue."""
        self.inactive_since_s = now
        self.level = 1

    def start(self, now: float) -> None:
        """Give the call a slot."""
        self._require("start", is_running=False)
        self.wait_s = self.wait_at(now)
        self.is_running = True
        self.running_since_s = now
        self.prefill_debt_s = 0.0

    def preempt(self, now: float, computed_tokens: int) -> None:
        """Take the call's slot away."""
        self._require("preempt", is_running=True)
        self.reached_tokens = max(self.reached_tokens, computed_tokens)
        self.behind_tokens = 0
        self.is_running = False
        self.waiting_since_s = now
        self.preemptions += 1

    def pause(self, now: float) -> None:
        """Let the call wait for its client, without a slot; from here to `resume` no time counts."""
        self.wait_s = self.wait_at(now)
        self.is_running, self.is_paused = False, True

    def resume(self, now: float) -> None:
        """Let a paused call wait for a slot again."""
        self.is_paused = False
        self.waiting_since_s = now

    def lose(self, tokens: int, steps: float) -> None:
        """Note that a resumed call computes tokens again, at a price in steps."""
        self.behind_tokens = tokens
        self.lost_steps += steps

    def charge(self, cost_s: float, *, is_prefill: bool, tokens: int, steps: int) -> None:
        """Add the model time and the tokens of some steps."""
        if self.behind_tokens > 0:
            # Of several steps, each computes a token.
            self.new_steps += max(0, steps - self.behind_tokens)
            self.behind_tokens -= tokens
        else:
            self.new_steps += steps
        self.service_s += cost_s
        self.quantum_s -= cost_s
        self.prefill_debt_s += cost_s if is_prefill else -cost_s

    def reset_ratio(self, now: float) -> None:
        """Set W_c and T_c to zero."""
        self.wait_mark_s = self.wait_at(now)
        self.service_mark_s = self.service_s

    def record(self, now: float, *, is_aborted: bool) -> CallRecord:
        """Return the record of the call, which leaves now."""
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
            inactive_s=self.inactive_at(now),
        )

    def _require(self, move: str, *, is_running: bool) -> None:
        if self.is_running is not is_running:
            state = "running" if self.is_running else "waiting"
            story = f"level {self.level}, {self.preemptions} preemptions, {self.service_s:.6f} s of service"
            raise IllegalMoveError(f"call {self.call_id!r}", move, state, story)
