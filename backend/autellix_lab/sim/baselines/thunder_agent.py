"""ThunderAgent's pausing router.

Source: Kang et al., "ThunderAgent: A Simple, Fast and Program-Aware Agentic Inference System", arXiv
2602.13692, and github.com/ThunderAgent-org/ThunderAgent at a7eef77 (6 March 2026),
`ThunderAgent/scheduler/router.py` and `backend/state.py`, mode `tr` with its defaults.

Rule: a program is reasoning (it has a call) or acting (a tool runs), and active or paused. It counts as the
tokens of its last call. The memory left is the KV capacity less the tokens and a buffer of 100 for each
active program. A new program starts at once if none is paused and its tokens and buffer fit; else it is
paused. Every 5 s the router

1. resumes what fits, of the paused programs first those with a call that is not their first, then the new
   ones, then those without a call, each group by fewest tokens; they enter the engine largest first;
2. pauses while memory is exceeded: acting programs at once, fewest tokens first, and then reasoning ones,
   fewest tokens first, which are paused as their call ends.

Calls of paused programs wait; after 1,800 s a program is resumed in any case. A call that has been sent is
not taken back, and the engine runs calls in order of arrival. With `decays`, off by default as in the
source, the tokens of acting programs count for step 1 with the weight 2^-t, t seconds after their call
ended.

Assumed: one engine. Tokens are exact, where the router estimates them from characters. Prefixes that
programs share count for each, as in that commit, which never updates its `shared_tokens`. Reasoning
programs that are marked count as gone while it looks for more to pause, as its comments say; the code marks
all of them. A program with parallel calls is acting as soon as one of them ends, and has the tokens of the
last, as in the source, which knows one call at a time. Ends of programs are announced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar

from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call
from autellix_backend.core.policies.fcfs import Fcfs
from autellix_backend.core.table import Program
from autellix_lab.sim.baselines.base import Baseline
from autellix_lab.sim.model import EngineModel

INTERVAL_S = 5.0
BUFFER_TOKENS = 100
MAX_PAUSE_S = 1800.0
REVIEW_STEPS = 16
"""Steps by which a stretch may overrun the end of an interval."""

_tokens = attrgetter("tokens")


@dataclass(slots=True, eq=False)
class RoutedProgram:
    """A program as the router knows it."""

    program_id: str
    tokens: int = 0
    calls: int = 0
    """Calls so far."""
    is_reasoning: bool = True
    is_paused: bool = False
    is_marked: bool = False
    """Whether it is paused as its call ends."""
    acting_since_s: float = 0.0
    paused_since_s: float = 0.0
    """When its first call that waits arrived, or when it was paused."""
    live: dict[str, Call] = field(default_factory=dict)
    """Active calls, in order of arrival."""

    @property
    def needed_tokens(self) -> int:
        """The memory that it takes when it is resumed."""
        return self.tokens + BUFFER_TOKENS

    @property
    def waits(self) -> bool:
        """Whether it is paused with a call."""
        return self.is_paused and any(not call.is_admitted for call in self.live.values())


class ThunderAgent(Baseline):
    """Pauses programs between their calls while their contexts exceed KV memory."""

    name: ClassVar[str] = "thunderagent"

    def __init__(self, model: EngineModel, *, decays: bool = False) -> None:
        """Make the router of one engine; `decays` counts acting programs less and less for resuming."""
        super().__init__(model)
        self.policy = Fcfs()
        self.programs: dict[str, RoutedProgram] = {}
        self._decays = decays
        self._next_s = INTERVAL_S

    @property
    def wake_s(self) -> float:
        """The end of the interval, while calls wait."""
        return self._next_s if any(program.waits for program in self._paused()) else math.inf

    def steps_to_review(self, step: int) -> int:  # noqa: ARG002
        """Return the steps between two checks of the time."""
        return REVIEW_STEPS

    def arrive(self, call: Call, program: Program, context: Context | None, now: float) -> None:
        """Send the call, unless its program is paused, or is new and does not fit."""
        routed = self.programs.get(program.program_id)
        if routed is None:
            routed = RoutedProgram(program.program_id)
            routed.tokens = 0 if context is None else context.tokens
            routed.is_paused = any(self._paused()) or self.left_tokens() < routed.needed_tokens
            self.programs[program.program_id] = routed
        routed.calls += 1
        routed.tokens = 0 if context is None else context.tokens
        if routed.is_paused and not routed.waits:
            routed.paused_since_s = now
        routed.is_reasoning = True
        routed.live[call.call_id] = call
        call.is_admitted = not routed.is_paused

    def leave(self, call: Call, program: Program, context_tokens: int, now: float) -> None:
        """Note the tokens of the context, and pause the program if it is marked."""
        routed = self.programs[program.program_id]
        del routed.live[call.call_id]
        routed.tokens = context_tokens or routed.tokens
        routed.is_reasoning, routed.acting_since_s = routed.waits, now
        if routed.is_marked:
            self._pause(routed, now)
        if program.is_ended:
            self.forget(program.program_id)

    def forget(self, program_id: str) -> None:
        """Release a program without calls."""
        routed = self.programs.get(program_id)
        if routed is not None and not routed.live:
            del self.programs[program_id]

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:  # noqa: ARG002
        """Resume and pause programs, at the end of an interval."""
        if now < self._next_s:
            return []
        self._next_s = INTERVAL_S * (math.floor(now / INTERVAL_S) + 1)
        for program in self._active():
            if program.live:
                program.tokens = tokens_of(next(reversed(program.live)))
        resumed = self._resume(now)
        self._pause_until_it_fits(now)
        return resumed

    def left_tokens(self) -> float:
        """Return the KV memory that active programs leave; below zero if it is exceeded."""
        return self.capacity_tokens - sum(program.needed_tokens for program in self._active())

    def _left_to_resume(self, now: float) -> float:
        left = self.left_tokens()
        if self._decays:
            acting = (program for program in self._active() if not program.is_reasoning)
            left += sum(own.tokens * (1 - 2.0 ** (own.acting_since_s - now)) for own in acting)
        return left

    def _active(self) -> Iterable[RoutedProgram]:
        return (program for program in self.programs.values() if not program.is_paused)

    def _paused(self) -> Iterable[RoutedProgram]:
        return (program for program in self.programs.values() if program.is_paused)

    def _resume(self, now: float) -> list[Call]:
        left = self._left_to_resume(now)
        chosen: list[RoutedProgram] = []
        for program in sorted(self._paused(), key=_order_of_resuming):
            is_overdue = program.waits and now - program.paused_since_s >= MAX_PAUSE_S
            if program.needed_tokens <= left or is_overdue:
                left -= program.needed_tokens
                chosen.append(program)
        admitted: list[Call] = []
        for program in sorted(chosen, key=_tokens, reverse=True):
            program.is_paused = False
            admitted += [call for call in program.live.values() if not call.is_admitted]
        for call in admitted:
            call.is_admitted = True
        return admitted

    def _pause_until_it_fits(self, now: float) -> None:
        left = self.left_tokens() + sum(own.needed_tokens for own in self._active() if own.is_marked)
        acting = [program for program in self._active() if not program.is_reasoning]
        reasoning = [program for program in self._active() if program.is_reasoning and not program.is_marked]
        for program in sorted(acting, key=_tokens) + sorted(reasoning, key=_tokens):
            if left >= 0:
                break
            left += program.needed_tokens
            if program.is_reasoning:
                program.is_marked = True
            else:
                self._pause(program, now)

    def _pause(self, program: RoutedProgram, now: float) -> None:
        program.is_paused, program.is_marked, program.paused_since_s = True, False, now

    def check(self) -> None:
        """Assert the invariants."""
        for program in self.programs.values():
            assert not (program.is_marked and program.is_paused), program
            assert program.is_paused or all(call.is_admitted for call in program.live.values()), program


def _order_of_resuming(program: RoutedProgram) -> tuple[int, int]:
    group = 1 if program.calls == 1 else 0 if program.is_reasoning else 2
    return group, program.tokens
