"""Continuum's pins.

Source: Li et al., "Continuum: Efficient and Robust Multi-Turn LLM Agent Scheduling with KV Cache
Time-to-Live", arXiv 2511.02230 (November 2025, revised to May 2026), sections 4 and 5, and its fork of vLLM
0.10.2, github.com/Hanchenli/vllm-continuum, where the text leaves something open.

Rule: waiting calls go first if they were preempted, then if their program is pinned, then by arrival of
their program. A call that is not its program's last pins its KV blocks as it finishes, for the time-to-live
that has the highest

    P(t) * (T * eta + prefill) - t

of t = 0 (no pin) and all durations of the tool so far, where P(t) is the share of them up to t; T the mean
wait of calls that came back to no pin; eta = -correlation(k, N - k) over the calls k = 1..N of ended
programs; and prefill the time to compute the call's context. With 100 or fewer durations of a tool those of
all tools count, and with 100 or fewer of all the time-to-live is fixed. A pin ends with the start of the
program's next call, the end of the program, or its time-to-live, then only while no call of the program
waits. When the first waiting call does not fit and nothing runs, pins end, latest program first, until it
does. Running calls are preempted, for want of blocks, latest program first.

Taken from the fork: a fixed time-to-live of 2 s, T over the latest 200 waits, and that pins give way only
when nothing runs. Assumed: traces name no tools, so the class of a program stands for its tool, with the
latest 500 durations of each. A duration is the gap until the program's next call as the engine sees it, and
takes 1 ms at least. A program has one pin, that of the call which finished last (the published rule knows
no parallel calls). The pin of a program's last call ends as the end of the program is announced.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from autellix_backend.core.admission.base import NEVER_STEPS
from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call, ChangeReason, LevelChange
from autellix_backend.core.policies.base import QueueInputs
from autellix_backend.core.policies.fcfs import Fcfs
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.table import Program
from autellix_lab.sim.baselines.base import Baseline
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.kv import Segment
from autellix_lab.sim.model import EngineModel, attended_pairs

FIXED_TTL_S = 2.0
FEW_DURATIONS = 100
DURATION_WINDOW, WAIT_WINDOW = 500, 200
LEAST_GAP_S = 0.001
PREEMPTED, PINNED, OTHER = 1, 2, 3
"""Levels of waiting calls."""


class Durations:
    """The latest durations (s) of a tool."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, duration_s: float) -> None:
        """Add a duration."""
        if len(self._latest) == DURATION_WINDOW:
            del self._sorted[bisect_right(self._sorted, self._latest.popleft()) - 1]
        self._latest.append(duration_s)
        insort(self._sorted, duration_s)

    def best_ttl_s(self, benefit_s: float) -> float:
        """Return the time-to-live of the highest expected net benefit; 0 for no pin."""
        best_s, most_s = 0.0, 0.0
        for position, ttl_s in enumerate(self._sorted, 1):
            # Of equal durations the last position counts, with the largest share.
            net_s = position / len(self._sorted) * benefit_s - ttl_s
            if net_s > most_s:
                best_s, most_s = ttl_s, net_s
        return best_s


class Memoryfulness:
    """How well the calls that a program has made predict how many are left: -correlation(k, N - k)."""

    def __init__(self) -> None:
        self._count = 0
        self._sums = [0.0] * 5

    def add(self, calls: int) -> None:
        """Add an ended program by its number of calls."""
        self._count += calls
        for made in range(1, calls + 1):
            left = calls - made
            values = (made, left, made * made, left * left, made * left)
            self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]

    @property
    def eta(self) -> float:
        """The factor: 1 if all programs have the same number of calls, or none are known."""
        made, left, made2, left2, product = self._sums
        spread = (self._count * made2 - made * made) * (self._count * left2 - left * left)
        return 1.0 if spread <= 0 else -(self._count * product - made * left) / math.sqrt(spread)


@dataclass(slots=True)
class Pin:
    """The KV blocks of a finished call, which are not evicted while the pin lasts."""

    segment: Segment
    until_s: float
    program_arrival_s: float


class PinnedBlocks(CallBlocks):
    """KV blocks of which pinned ones are held until nothing runs beside them."""

    def __init__(self, model: EngineModel) -> None:
        super().__init__(model, is_priced=False)
        self.pins: dict[str, Pin] = {}
        """By program."""
        self.orders: dict[str, tuple[float, float]] = {}
        """For finished calls that leave a pin: until when, and the arrival of their program."""
        self._running = 0

    def enter(self, call: EngineCall, budget: int, reserve: int) -> bool:
        """Allocate a waiting call's blocks; where nothing runs, pins end to make room."""
        while not super().enter(call, budget, reserve):
            if self._running or not self.pins:
                return False
            self.unpin(max(self.pins, key=lambda program_id: self.pins[program_id].program_arrival_s))
        self._running += 1
        return True

    def release(self, call: EngineCall) -> None:
        """Release the blocks of a finished or preempted call, or pin them."""
        self._running -= 1
        order = self.orders.pop(call.call_id, None)
        if order is not None:
            assert call.segment is not None
            self.kv.hold(call.segment)
            self.unpin(call.program_id)
            self.pins[call.program_id] = Pin(call.segment, *order)
        super().release(call)

    def unpin(self, program_id: str) -> None:
        """End the pin of a program, if it has one."""
        pin = self.pins.pop(program_id, None)
        if pin is not None:
            self.kv.release(pin.segment)


class PinOrder(Queue):
    """Calls by level, the arrival of their program and their own; running ones have the last level."""

    def __init__(
        self, pins: dict[str, Pin], on_start: Callable[[Call], None], numbers: Iterator[int] | None = None
    ) -> None:
        super().__init__(numbers)
        self._pins = pins
        self._on_start = on_start
        self._calls: dict[str, Call] = {}

    def __iter__(self) -> Iterator[Call]:
        """Walk the calls, the next to run first."""
        for call in self._calls.values():
            call.level = self._level(call)
        return iter(sorted(self._calls.values(), key=_rank))

    def insert(self, call: Call, program: Program) -> None:
        """Queue a new call."""
        call.seq = next(self._numbers)
        call.own_key = program.created_s
        call.level = self._level(call)
        call.quantum_s, call.is_quantum_binding = math.inf, False
        self._calls[call.call_id] = call

    def remove(self, call: Call) -> None:
        """Remove a queued call."""
        del self._calls[call.call_id]

    def promote(self, call: Call) -> None:
        """Do nothing: the first program cannot starve."""

    def on_quantum_used(self, call: Call, program: Program) -> LevelChange:  # noqa: ARG002
        """Change nothing: no quantum binds."""
        return LevelChange(call_id=call.call_id, old=call.level, new=call.level, reason=ChangeReason.RESIZING)

    def on_started(self, call: Call) -> None:
        """Take the level from a call that got a slot, for which calls are preempted by program alone."""
        call.level = OTHER
        self._on_start(call)

    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of calls in each level."""
        levels = [call.level for call in self._calls.values()]
        return tuple(levels.count(level) for level in (PREEMPTED, PINNED, OTHER))

    def waiting_programs(self) -> set[str]:
        """Return the programs with a call that waits."""
        return {call.program_id for call in self._calls.values() if not call.is_running}

    def check(self) -> None:
        """Assert the invariants of the queue."""
        assert all(call.level == OTHER for call in self._calls.values() if call.is_running)

    def _level(self, call: Call) -> int:
        if call.is_running:
            return OTHER
        if call.preemptions:
            return PREEMPTED
        return PINNED if call.program_id in self._pins else OTHER


class PinPolicy(Fcfs):
    """Programs in order of arrival, pinned ones before the others."""

    name: ClassVar[str] = "continuum"
    rule: ClassVar[str] = "calls of pinned programs run first, then those of the program that came first"
    reorders: ClassVar[bool] = True
    preempts: ClassVar[bool] = False
    promotes: ClassVar[bool] = False

    def __init__(self, pins: dict[str, Pin], on_start: Callable[[Call], None]) -> None:
        self.queues: list[PinOrder] = []
        self._pins = pins
        self._on_start = on_start

    def make_queue(self, inputs: QueueInputs) -> Queue:
        """Return a queue that knows the pins."""
        # The tenant, of which a simulation has one, gets a new queue each time that it was without calls.
        self.queues = [PinOrder(self._pins, self._on_start, inputs.numbers)]
        return self.queues[0]


class Continuum(Baseline):
    """Pins the KV blocks of programs while their tools run."""

    name: ClassVar[str] = "continuum"

    def __init__(self, model: EngineModel) -> None:
        super().__init__(model)
        self.blocks: PinnedBlocks = PinnedBlocks(model)
        self.policy: PinPolicy = PinPolicy(self.blocks.pins, self._started)
        self._all_tools = Durations()
        self._tools: dict[str, Durations] = {}
        self._memoryfulness = Memoryfulness()
        self._waits_s: deque[float] = deque(maxlen=WAIT_WINDOW)
        self._calls: dict[str, int] = {}
        """Calls of each live program so far."""
        self._returned: set[str] = set()
        """Calls that came back from a tool and have not started."""
        self._finished_s: dict[str, float] = {}
        """When the last call of a program finished, until its next one arrives."""

    def steps_to_review(self, step: int) -> int:  # noqa: ARG002
        """Return the steps until a pin may end, which makes room."""
        return 1 if self.blocks.pins else NEVER_STEPS

    def arrive(self, call: Call, program: Program, context: Context | None, now: float) -> None:  # noqa: ARG002
        """Learn the duration of the tool that ran since the program's last call."""
        program_id = call.program_id
        self._calls[program_id] = self._calls.get(program_id, 0) + 1
        finished_s = self._finished_s.pop(program_id, None)
        if finished_s is not None:
            self._returned.add(call.call_id)
            gap_s = max(LEAST_GAP_S, now - finished_s)
            self._all_tools.add(gap_s)
            self._tools.setdefault(program.hints.class_name, Durations()).add(gap_s)

    def leave(self, call: Call, program: Program, context_tokens: int, now: float) -> None:
        """Pin the call's KV blocks for its time-to-live."""
        self._finished_s[call.program_id] = now
        self._returned.discard(call.call_id)
        ttl_s = self.ttl_s(program.hints.class_name, context_tokens)
        if ttl_s > 0 and context_tokens:
            self.blocks.orders[call.call_id] = now + ttl_s, program.created_s

    def forget(self, program_id: str) -> None:
        """End the program's pin, and learn its number of calls."""
        self.blocks.unpin(program_id)
        self._finished_s.pop(program_id, None)
        calls = self._calls.pop(program_id, None)
        if calls is not None:
            self._memoryfulness.add(calls)

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:  # noqa: ARG002
        """End the pins that are over."""
        over = [program_id for program_id, pin in self.blocks.pins.items() if now > pin.until_s]
        if over:
            waiting = {program_id for queue in self.policy.queues for program_id in queue.waiting_programs()}
            for program_id in over:
                if program_id not in waiting:
                    self.blocks.unpin(program_id)
        return []

    def ttl_s(self, tool: str, context_tokens: int) -> float:
        """Return the time-to-live of a pin; 0 for no pin."""
        if len(self._all_tools) <= FEW_DURATIONS:
            return FIXED_TTL_S
        durations = self._tools.get(tool)
        if durations is None or len(durations) <= FEW_DURATIONS:
            durations = self._all_tools
        wait_s = sum(self._waits_s) / len(self._waits_s) if self._waits_s else 0.0
        return durations.best_ttl_s(wait_s * self._memoryfulness.eta + self._prefill_s(context_tokens))

    def _prefill_s(self, tokens: int) -> float:
        steps = -(-tokens // self.model.token_budget)
        pairs = attended_pairs(0, tokens)
        return self.model.step_time_s(0, tokens, pairs=pairs) + max(0, steps - 1) * self.model.step_s

    def _started(self, call: Call) -> None:
        """End the pin of a program whose next call has started."""
        has_returned = call.call_id in self._returned
        self._returned.discard(call.call_id)
        if has_returned and call.program_id not in self.blocks.pins:
            self._waits_s.append(call.wait_s)
        self.blocks.unpin(call.program_id)


def _rank(call: Call) -> tuple[int, float, int]:
    return call.rank
