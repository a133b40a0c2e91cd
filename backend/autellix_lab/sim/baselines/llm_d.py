"""The least attained service queue of the llm-d router.

Source: github.com/llm-d/llm-d-router at ebab687 (21 August 2026), under
`pkg/epp/framework/plugins/flowcontrol`: `fairness/program-aware` (strategy `las`, its defaults) and
`saturationdetector/utilization`, the detector of a configuration that names none.

Rule: the router queues the calls of each program, first come, first served. While the engine is not
saturated, it sends the head of the queue with the best score

    0.8 * (1 - service) + 0.2 * waiting time of the head,

each scaled to 0..1 between the least and the most of all queues (0.5 where they are equal). The service of
a program is that of its finished calls, prompt tokens + 2 * output tokens, with a half-life of 60 s. The
engine is saturated while max(its waiting calls / 5, its KV usage / 0.8) is at least 1. Inside the engine
calls run in the order in which they were sent, and the router takes none back.

Assumed: a fairness id for each program; the router sees the engine as it is, where the real one reads
metrics that are up to 200 ms old; among equal scores the program whose calls have been queued for longest
goes first, where the real one takes any. The eviction of programs that were idle for an hour is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call
from autellix_backend.core.policies.fcfs import Fcfs
from autellix_backend.core.table import Program
from autellix_lab.sim.baselines.base import Baseline
from autellix_lab.sim.model import EngineModel

SERVICE_SHARE, WAIT_SHARE = 0.8, 0.2
PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
HALF_LIFE_S = 60.0
MAX_WAITING = 5
"""Waiting calls at which the engine counts as saturated."""
MAX_KV_USAGE = 0.8


@dataclass(slots=True)
class Attained:
    """The decayed service (weighted tokens) of a program, as of a time."""

    tokens: float = 0.0
    at_s: float = 0.0

    def at(self, now: float) -> float:
        """Return the service with the decay up to now."""
        self.tokens *= 2.0 ** (-(now - self.at_s) / HALF_LIFE_S)
        self.at_s = now
        return self.tokens


@dataclass(slots=True)
class _Flow:
    attained: Attained = field(default_factory=Attained)
    queue: deque[Call] = field(default_factory=deque)


class LeastAttainedService(Baseline):
    """Sends the calls of the least served programs to an engine with a short queue of its own."""

    name: ClassVar[str] = "llm-d"

    def __init__(self, model: EngineModel) -> None:
        super().__init__(model)
        self.policy = Fcfs()
        self._flows: dict[str, _Flow] = {}
        self._queued: dict[str, _Flow] = {}
        """Programs with calls at the router, in the order in which they began to wait."""
        self._sent: dict[str, Call] = {}
        self._prompts: dict[str, int] = {}
        """Prompt tokens of the active calls."""

    def arrive(self, call: Call, program: Program, context: Context | None, now: float) -> None:  # noqa: ARG002
        """Queue the call at the router."""
        flow = self._flows.setdefault(program.program_id, _Flow())
        flow.queue.append(call)
        self._queued.setdefault(program.program_id, flow)
        self._prompts[call.call_id] = 0 if context is None else context.tokens
        call.is_admitted = False

    def leave(self, call: Call, program: Program, context_tokens: int, now: float) -> None:
        """Add the call's tokens to the service of its program."""
        del self._sent[call.call_id]
        prompt_tokens = self._prompts.pop(call.call_id)
        attained = self._flows.setdefault(program.program_id, _Flow()).attained
        output_tokens = max(0, context_tokens - prompt_tokens)
        attained.tokens = attained.at(now) + PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens

    def forget(self, program_id: str) -> None:
        """Forget the service of a program without calls at the router."""
        if program_id not in self._queued:
            self._flows.pop(program_id, None)

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:  # noqa: ARG002
        """Send calls until the engine is saturated."""
        sent: list[Call] = []
        while self._queued and self.saturation() < 1:
            program_id = self.pick(now)
            queue = self._queued[program_id].queue
            call = queue.popleft()
            if not queue:
                del self._queued[program_id]
            call.is_admitted = True
            self._sent[call.call_id] = call
            sent.append(call)
        return sent

    def saturation(self) -> float:
        """Return the load of the engine; from 1 on the router sends nothing."""
        waiting = sum(not call.is_running for call in self._sent.values())
        blocks = self.model.kv_blocks
        usage = 0.0 if blocks is None else 1 - self.blocks.kv.available / blocks
        return max(waiting / MAX_WAITING, usage / MAX_KV_USAGE)

    def pick(self, now: float) -> str:
        """Return the program whose next call goes first."""
        services = {program_id: flow.attained.at(now) for program_id, flow in self._queued.items()}
        waits_s = {program_id: now - flow.queue[0].arrival_s for program_id, flow in self._queued.items()}
        low, high = min(services.values()), max(services.values())
        low_s, high_s = min(waits_s.values()), max(waits_s.values())

        def score(program_id: str) -> float:
            underserved = 1 - _scaled(services[program_id], low, high)
            return SERVICE_SHARE * underserved + WAIT_SHARE * _scaled(waits_s[program_id], low_s, high_s)

        return max(self._queued, key=score)

    def check(self) -> None:
        """Assert the invariants."""
        for flow in self._queued.values():
            assert flow.queue
            assert not any(call.is_admitted for call in flow.queue)
        assert all(call.is_admitted for call in self._sent.values())


def _scaled(value: float, low: float, high: float) -> float:
    return 0.5 if low == high else (value - low) / (high - low)
