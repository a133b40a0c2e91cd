"""Locality by working sets: a program goes where its context fits, or fits first.

Like `locality_bounded`, with the engines' own account of their memory (`memory.py`) in place of guessed
evictions: admission protects the context of an active program from eviction.

    cost = wait for activation + cost of the call among those of active programs (`cost.py`)

A new program waits until its context fits beside those that are there. One that is active on its engine waits
for memory on other engines only; one that its engine made inactive waits there as well, and moves where
waiting and prefilling its context again take less time.

Programs that were sent since an engine's last report count too: else many that arrive together would all
choose the same engine. A shared prefix needs no further memory where programs with it are, and no prefill
where they were recently (`prefixes.py`).

For an engine that reports no working set, the cost is that of `locality_bounded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from autellix_backend.core.balance.base import ArrivingCall, EngineLoad, FinishedCall, Placement
from autellix_backend.core.balance.bounded import NEW_WAIT_WEIGHT, EnginePin, LocalityBounded
from autellix_backend.core.balance.cost import cost_s
from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.core.balance.prefixes import SharedPrefixes

MAX_UNSEEN_REPORTS = 4
"""Reports without a program that was sent there after which it counts as not arrived."""


@dataclass(slots=True)
class _Sent:
    """A program that an engine has not reported since it was sent there."""

    tokens: int
    """The memory that it needs."""
    reports: int = 0
    """Reports that have come since."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A program on an engine."""

    engine: str
    prefix: str
    prefix_tokens: int
    """The expected length of its prefix."""
    found_prefix: bool
    """Whether the engine should have had the prefix cached when the call arrived."""
    placement: Placement | None


class WorkingSet(LocalityBounded):
    """Pins that yield, by working sets; state is that of each program until it is forgotten."""

    name: ClassVar[str] = "working_set"
    reads_prefixes: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[str, _Member] = {}
        self._prefixes = SharedPrefixes()
        self._reports: dict[str, MemoryReport] = {}
        self._sent: dict[str, dict[str, _Sent]] = {}
        """Placements that no report shows yet, by engine and program."""

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the engine where the call costs least, or the program's own if that is hardly more."""
        self._read_reports(self._accepting(loads))
        member, pin = self._members.get(call.program_id), self._pins.get(call.program_id)
        call = call if member is None else replace(call, prefix=member.prefix)
        engine = super().assign(call, loads)
        chosen = next(load for load in loads if load.name == engine)
        if member is not None and member.engine == engine:
            new_tokens = call.prompt_tokens - (0 if pin is None else pin.context_tokens)
        else:
            left = None if member is None else next(load for load in loads if load.name == member.engine)
            new_tokens = self._new_tokens(chosen, call, pin)
            placed = self._placed(chosen, left, call, pin)
            prefix_tokens = self._prefix_tokens(call)
            self._leave(call.program_id)
            self._enter(chosen, call, prefix_tokens, placed)
        self._prefixes.used(engine, call.prefix, max(0, new_tokens))
        return engine

    def finished(self, call: FinishedCall) -> None:
        """Learn how long calls are, and how long prefixes are."""
        member, pin = self._members.get(call.program_id), self._pins.get(call.program_id)
        is_first = pin is not None and pin.calls == 1
        if member is not None and is_first and member.found_prefix and call.cached_tokens is not None:
            self._prefixes.learn(member.prefix, call.cached_tokens / max(1, call.prompt_tokens))
        super().finished(call)

    def forget(self, program_id: str) -> None:
        """Drop a program that has ended; it may be unknown."""
        self._leave(program_id)
        super().forget(program_id)

    def placement(self, program_id: str) -> Placement | None:
        """Return why a program is on its engine; None where that reports no working set."""
        member = self._members.get(program_id)
        return None if member is None else member.placement

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self._prefixes.check()
        assert self._members.keys() == self._pins.keys()
        assert all(self._pins[program].engine == member.engine for program, member in self._members.items())
        for engine, sent in self._sent.items():
            assert all(self._members[program].engine == engine for program in sent)

    # Programs on engines.

    def _enter(
        self, load: EngineLoad, call: ArrivingCall, prefix_tokens: int, placement: Placement | None
    ) -> None:
        engine, prefix = load.name, call.prefix
        self._members[call.program_id] = _Member(
            engine,
            prefix,
            prefix_tokens,
            bool(prefix) and self._prefixes.is_cached(engine, prefix, load.kv_tokens),
            placement,
        )
        if placement is not None:
            self._sent[engine][call.program_id] = _Sent(placement.context_tokens)
        self._prefixes.joined(engine, prefix)

    def _leave(self, program_id: str) -> None:
        member = self._members.pop(program_id, None)
        if member is not None:
            self._prefixes.left(member.engine, member.prefix)
            self._sent.get(member.engine, {}).pop(program_id, None)

    def _leave_engines(self, gone: set[str]) -> None:
        for program in [program for program, member in self._members.items() if member.engine in gone]:
            self._leave(program)
        for engine in gone:
            self._prefixes.lost(engine)
            self._reports.pop(engine, None)
            self._sent.pop(engine, None)
        super()._leave_engines(gone)

    def _read_reports(self, loads: Sequence[EngineLoad]) -> None:
        """Stop counting the programs that new reports include."""
        for load in loads:
            report = load.memory
            if report is None or report is self._reports.get(load.name):
                continue
            self._reports[load.name] = report
            sent = self._sent.get(load.name, {})
            for unseen in sent.values():
                unseen.reports += 1
            self._sent[load.name] = {
                program: unseen
                for program, unseen in sent.items()
                if report.is_complete and program not in report.known and unseen.reports < MAX_UNSEEN_REPORTS
            }

    # Costs.

    def _cost_s(self, load: EngineLoad, call: ArrivingCall, pin: EnginePin | None) -> float:
        memory = load.memory
        if memory is None:
            return super()._cost_s(load, call, pin)
        call_s = cost_s(
            load,
            self._mean,
            self._new_tokens(load, call, pin),
            inactive_calls=memory.inactive_calls,
            wait_weight=NEW_WAIT_WEIGHT if pin is None else 1.0,
        )
        return self._wait_s(load, memory, call, pin) + call_s

    def _wait_s(
        self, load: EngineLoad, memory: MemoryReport, call: ArrivingCall, pin: EnginePin | None
    ) -> float:
        """Return how long the call waits there until its program is active."""
        program, sent = call.program_id, self._sent[load.name]
        is_inactive = program in memory.inactive
        is_active = program in memory.known and not is_inactive
        may_be_idle = not memory.is_complete and pin is not None and pin.engine == load.name
        if is_active or (may_be_idle and not is_inactive and program not in sent):
            return 0.0
        return memory.wait_s(
            self._own_tokens(load, call),
            sent_tokens=sum(unseen.tokens for name, unseen in sent.items() if name != program),
            between_ends_s=self._between_ends_s(load, memory),
            is_inactive=is_inactive,
        )

    def _between_ends_s(self, load: EngineLoad, memory: MemoryReport) -> float:
        """Return the time between two ends if the active programs were mean ones and always had a call."""
        mean = self._mean
        decode_s = (
            mean.output_tokens * load.decode_s_per_token / max(1, min(memory.active_programs, load.slots))
        )
        return (1 + mean.calls_after) * (mean.new_tokens * load.prefill_s_per_token + decode_s)

    def _prefix_tokens(self, call: ArrivingCall) -> int:
        """Return the expected length of the prefix that the call shares with other programs."""
        member = self._members.get(call.program_id)
        if member is not None:
            return min(member.prefix_tokens, call.prompt_tokens)
        return int(self._prefixes.share(call.prefix) * call.prompt_tokens) if call.prefix else 0

    def _own_tokens(self, load: EngineLoad, call: ArrivingCall) -> int:
        """Return the memory that the call's context needs beside what other programs there have."""
        has_members = self._prefixes.has_members(load.name, call.prefix)
        return call.prompt_tokens - (self._prefix_tokens(call) if has_members else 0)

    def _new_tokens(self, load: EngineLoad, call: ArrivingCall, pin: EnginePin | None) -> int:
        """Return the part of the prompt that should not be in the engine's cache."""
        held_tokens = 0
        if pin is not None:
            held_tokens = pin.context_tokens if pin.engine == load.name else 0
        elif load.memory is not None and call.program_id in load.memory.known:
            # Another gateway sent it there, or this one before it was restarted.
            held_tokens = call.prompt_tokens
        if self._prefixes.is_cached(load.name, call.prefix, load.kv_tokens):
            held_tokens = max(held_tokens, self._prefix_tokens(call))
        return max(0, call.prompt_tokens - held_tokens)

    def _placed(
        self, chosen: EngineLoad, left: EngineLoad | None, call: ArrivingCall, pin: EnginePin | None
    ) -> Placement | None:
        memory = chosen.memory
        if memory is None:
            return None
        own_tokens = self._own_tokens(chosen, call)
        wait_s = self._wait_s(chosen, memory, call, pin)
        left_wait_s = 0.0
        if left is not None and left.memory is not None:
            left_wait_s = self._wait_s(left, left.memory, call, pin)
        return Placement(
            engine=chosen.name,
            context_tokens=own_tokens,
            wait_s=wait_s,
            shared_tokens=call.prompt_tokens - own_tokens,
            left=None if left is None else left.name,
            left_wait_s=left_wait_s,
        )
