"""The order in which queued calls go to an engine. Pure: time is an argument, and nothing waits here.

ArrivalOrdering    first come, first served, without a bound on calls at the engine, which orders them itself
PolicyOrdering     the scheduler's own machine decides, for an engine that cannot order calls
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from autellix_backend.core.admission.working_set import REVIEW_STEPS
from autellix_backend.core.arrival import Arrival
from autellix_backend.core.balance.memory import MemoryReport, memory_of
from autellix_backend.core.boost import work_of
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.engines.base import Engine
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.engines.inactive import Inactive
from autellix_backend.gateway.engines.prefix_lengths import PrefixLengths
from autellix_backend.observe.settled_call import Usage
from autellix_backend.reports.snapshot import AdmissionSnapshot, admission_of
from autellix_backend.settings import Settings

REVIEW_PERIOD_S = 0.2
"""How often admission reviews the contexts."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call was queued."""

    wait_s: float
    counted_s: float
    """The part that counts for its program's wait/service ratio: the time since its last promotion."""
    inactive_s: float = 0.0
    """The part of the wait in which the program was inactive."""


class ArrivalOrdering:
    """First come, first served, without a bound on sent calls; every program may run."""

    has_policy: ClassVar[bool] = False
    """Whether the scheduler's policy decides."""
    slots: ClassVar[float] = math.inf
    """How many calls may be sent at once."""
    wake_s: ClassVar[float] = math.inf
    """When to ask for the next call again even if nothing happens; inf for never."""

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}

    def enter(self, arrival: Arrival, now: float) -> None:
        """Append a call, whose id must not be in use."""
        self._waiting[arrival.call_id] = now

    def next(self, now: float) -> str | None:  # noqa: ARG002
        """Return the queued call to send first; None if none may be sent."""
        return next(iter(self._waiting), None)

    def send(self, key: str, now: float) -> Wait:
        """Note that a queued call is sent; return how long it waited."""
        waited_s = now - self._waiting.pop(key)
        return Wait(wait_s=waited_s, counted_s=waited_s)

    def leave(self, key: str, now: float, usage: Usage | None = None) -> Wait | None:  # noqa: ARG002
        """Remove a call that may have been sent; return how long it waited if it is still queued.

        Args:
            key: The call's id.
            now: The time.
            usage: The tokens that its answer states; None if unknown.
        """
        return self.send(key, now) if key in self._waiting else None

    def on_program_ended(self, program_id: str, now: float) -> None:
        """Free what is kept for a program, which may be unknown: nothing."""

    def inactive(self, key: str) -> Inactive | None:  # noqa: ARG002
        """Return why a queued call's program is not active; None if it is."""
        return None

    def is_inactive(self, key: str) -> bool:  # noqa: ARG002
        """Return whether a queued call's program is not active."""
        return False

    def working_set(self) -> AdmissionSnapshot | None:
        """Return the estimated working set; None without admission."""
        return None

    def memory(self, now: float) -> MemoryReport | None:  # noqa: ARG002
        """Return what the balancer needs of it, at most REVIEW_PERIOD_S old; None without admission."""
        return None


class PolicyOrdering:
    """The scheduler's machine over the calls at the gateway: order, tenants' shares, promotion and admission.

    A sent call is never preempted. What an engine with our scheduler measures is estimated here. A call is
    charged the time that it holds its slot. Its context is the estimated length of its prompt, and once its
    answer has come, the tokens that this states. What the first calls of programs found in the cache is the
    length of the prefix that these share. The cost of work is the time in which the engine had calls, by the
    work of those that it finished.
    """

    has_policy: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, slots: float = math.inf, kv_tokens: float = math.inf) -> None:
        """Order calls for an engine.

        Args:
            config: The scheduler's configuration.
            slots: How many calls may be sent at once, at first.
            kv_tokens: The engine's KV memory; infinity if unknown, which turns admission off.
        """
        self._machine = Machine(config, kv_tokens=kv_tokens)
        self.slots = slots
        """How many calls may be sent at once; may change, and calls that were sent go on."""
        self._kv_tokens = kv_tokens
        self._charged_until_s: dict[str, float] = {}
        """Time (s) up to which a sent call is charged, by call."""
        self._tokens: dict[str, int] = {}
        """The context of each call."""
        self._last_tokens: dict[str, int] = {}
        """The context that a program's last call has left."""
        self._prefixes: dict[str, str] = {}
        """What the prompts of a program begin with, by an id."""
        self._first_calls: set[str] = set()
        """The calls before which their program, whose prefix is known, had none here."""
        self._prefix_lengths = PrefixLengths()
        self._cost_until_s = 0.0
        """Until when the engine's busy time counts in the cost of work."""
        self._memory: MemoryReport | None = None
        self._memory_until_s = -math.inf

    def enter(self, arrival: Arrival, now: float) -> None:
        """Queue the call by its program's past."""
        context = arrival.context
        if context is not None:
            last_tokens = self._last_tokens.get(arrival.program_id, 0)
            # An estimate above all memory is wrong (an image in the body), or the engine will refuse it.
            tokens = context.tokens if context.tokens <= self._kv_tokens else last_tokens
            self._tokens[arrival.call_id] = tokens
            prefix, prefix_tokens = self._prefix_of(arrival)
            context = replace(context, tokens=tokens, shared_tokens=min(tokens, last_tokens), prefix=None)
            if 0 < prefix_tokens <= tokens:
                # Its length is a part of the id: programs that share a prefix have to agree on it.
                context = replace(context, prefix=(prefix, prefix_tokens), prefix_tokens=prefix_tokens)
            arrival = replace(arrival, context=context)
        self._machine.arrive(arrival, now)

    def next(self, now: float) -> str | None:
        """Return the first queued call in the machine's order, if a slot is free."""
        if len(self._charged_until_s) >= self.slots:
            return None
        self._charge(now)
        # Time stands in for the engine's steps, which are unknown here.
        step = int(now * REVIEW_STEPS / REVIEW_PERIOD_S)
        self._machine.review(now, step, lambda key: self._tokens.get(key, 0))
        self._machine.tick(now)
        return next((call.call_id for call in self._machine if not call.is_running), None)

    @property
    def wake_s(self) -> float:
        """When to ask for the next call again even if nothing happens; inf for never."""
        return self._machine.admission.wake_s

    def send(self, key: str, now: float) -> Wait:
        """Give the call a slot."""
        assert len(self._charged_until_s) < self.slots
        call = self._machine.call(key)
        wait = Wait(
            wait_s=call.wait_at(now), counted_s=call.unpaid_wait_at(now), inactive_s=call.inactive_at(now)
        )
        self._machine.start(key, now)
        if not self._charged_until_s:
            self._cost_until_s = now
        self._charged_until_s[key] = now
        return wait

    def leave(self, key: str, now: float, usage: Usage | None = None) -> Wait | None:
        """Free the call's slot, or return how long it waited."""
        self._charge(now)
        self._tokens.pop(key, None)
        is_first = key in self._first_calls
        self._first_calls.discard(key)
        if self._charged_until_s.pop(key, None) is None:
            record = self._machine.abort(key, now)
            return Wait(wait_s=record.wait_s, counted_s=record.table_wait_s, inactive_s=record.inactive_s)
        if is_first and usage is not None:
            prefix = self._prefixes.get(self._machine.call(key).program_id, "")
            self._prefix_lengths.learn(prefix, usage.cached_tokens or 0)
        self._finish(key, now, usage)
        return None

    def on_program_ended(self, program_id: str, now: float) -> None:
        """Free what is kept for the program, at once or with its last call here."""
        self._last_tokens.pop(program_id, None)
        self._prefixes.pop(program_id, None)
        self._machine.end_program(program_id, now)

    def is_inactive(self, key: str) -> bool:
        """Return whether the call's program is not active."""
        return self._machine.admission.memory is not None and not self._machine.call(key).is_admitted

    def inactive(self, key: str) -> Inactive | None:
        """Return why the call's program is not active; takes a pass over the programs."""
        memory = self._machine.admission.memory
        call = self._machine.call(key)
        if memory is None or call.is_admitted:
            return None
        own, working_set = memory.find(call.program_id), self.working_set()
        assert own is not None
        assert working_set is not None
        return Inactive(
            context_tokens=own.needed_tokens,
            place=memory.inactive.places()[call.program_id],
            working_set=working_set,
        )

    def working_set(self) -> AdmissionSnapshot | None:
        """Return the estimated working set."""
        return admission_of(self._machine)

    def memory(self, now: float) -> MemoryReport | None:
        """Return the estimate for the balancer, kept for a while: it takes a pass over the programs."""
        if now >= self._memory_until_s:
            self._memory = memory_of(self._machine, now)
            self._memory_until_s = now + REVIEW_PERIOD_S
        return self._memory

    def check(self) -> None:
        """Assert the invariants."""
        self._machine.check()
        running = {call.call_id for call in self._machine if call.is_running}
        assert running == self._charged_until_s.keys()
        assert all(program_id in self._machine.table for program_id in self._last_tokens)

    def _prefix_of(self, arrival: Arrival) -> tuple[str, int]:
        """Return the id and the length of what a call's prompt begins with; no tokens if that is unknown."""
        program_id, context = arrival.program_id, arrival.context
        assert context is not None
        if isinstance(context.prefix, str) and program_id not in self._prefixes:
            self._prefixes[program_id] = context.prefix
            self._first_calls.add(arrival.call_id)
        prefix = self._prefixes.get(program_id, "")
        return prefix, self._prefix_lengths.tokens(prefix)

    def _finish(self, key: str, now: float, usage: Usage | None) -> None:
        work, context_tokens = 0.0, 0
        if usage is not None:
            work = work_of(max(0, usage.prompt_tokens - (usage.cached_tokens or 0)), usage.output_tokens)
            context_tokens = usage.prompt_tokens + usage.output_tokens
            self._machine.observe_step(work, now - self._cost_until_s)
        self._cost_until_s = now
        record = self._machine.finish(key, now, work=work, context_tokens=context_tokens)
        if context_tokens and record.program_id in self._machine.table:
            self._last_tokens[record.program_id] = context_tokens

    def _charge(self, now: float) -> None:
        for key, until_s in self._charged_until_s.items():
            self._machine.charge(key, now - until_s, now)
            self._charged_until_s[key] = now


Ordering = ArrivalOrdering | PolicyOrdering


def make_ordering(engine: Engine, settings: Settings) -> Ordering:
    """Return the order of the calls for an engine, as long as it has no scheduler of ours.

    The bound on calls in flight may be learned later.
    """
    limits, scheduler = settings.engine, settings.scheduler
    slots, kv_tokens = limits.max_in_flight, limits.kv_tokens or engine.kv_tokens
    has_admission = scheduler.has_admission and kv_tokens is not None
    has_scheduler = engine.is_owned and engine.report_endpoints
    if not has_scheduler and (slots is not None or has_admission or states_queue(engine)):
        return PolicyOrdering(scheduler, slots or math.inf, kv_tokens or math.inf)
    return ArrivalOrdering()


def states_queue(engine: Engine) -> bool:
    """Return whether an engine states how many calls run and wait there, so that a bound can be learned."""
    return isinstance(engine, RemoteEngine) and engine.states_queue
