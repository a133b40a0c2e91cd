"""A program that is alive in a simulation."""

from __future__ import annotations

from autellix_backend.gateway.recording.trace import ProgramTrace
from autellix_lab.sim.calls import EngineCall

__all__ = ["LiveProgram"]


class LiveProgram:
    """What is left of a program, and what its calls have got so far; times in seconds."""

    __slots__ = (
        "arrival_s",
        "cached_tokens",
        "calls",
        "children",
        "hint_error",
        "index",
        "left",
        "missing",
        "paths_s",
        "preemptions",
        "service_s",
        "to_come_s",
        "tokens_left",
        "trace",
        "wait_s",
    )

    def __init__(
        self, index: int, trace: ProgramTrace, arrival_s: float, *, to_come_s: float, hint_error: float
    ) -> None:
        self.index = index
        self.trace = trace
        self.arrival_s = arrival_s
        self.to_come_s = to_come_s
        """Model time of the calls that have not finished, for the clairvoyant."""
        self.hint_error = hint_error
        """What its client's hints are off by: one that expects too much expects too much throughout."""
        self.missing = [len(set(call.parents)) for call in trace.calls]
        """For each call, how many parents have not finished."""
        self.children: list[list[int]] = [[] for _ in trace.calls]
        for call in trace.calls:
            for parent in set(call.parents):
                self.children[parent].append(call.id)
        self.left = len(trace.calls)
        self.tokens_left = sum(max(1, call.decode_tokens) for call in trace.calls)
        self.calls: dict[tuple[str, int], EngineCall] = {}
        """By engine and number; those that have arrived."""
        self.paths_s: dict[int, float] = {}
        self.cached_tokens = 0
        self.wait_s = 0.0
        self.service_s = 0.0
        self.preemptions = 0
