"""A program in progress in a simulation."""

from __future__ import annotations

from autellix_backend.core.boost import work_of
from autellix_backend.core.classes import ClassKey, ObservedProgram
from autellix_backend.gateway.recording.trace import CallTrace, ProgramTrace
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.results import ProgramRecord
from autellix_lab.workload.prefixes import SystemPrefix

__all__ = ["LiveProgram"]


class LiveProgram:
    """The remaining work of a program, and the sums over its finished calls; times in seconds."""

    __slots__ = (
        "arrival_s",
        "cached_tokens",
        "calls",
        "children",
        "hint_error",
        "index",
        "loaded_tokens",
        "missing",
        "observed",
        "paths_s",
        "preemptions",
        "prefix",
        "recomputed_tokens",
        "remaining_calls",
        "remaining_s",
        "remaining_tokens",
        "service_s",
        "trace",
        "wait_s",
        "work",
    )

    def __init__(
        self,
        index: int,
        trace: ProgramTrace,
        arrival_s: float,
        *,
        prefix: SystemPrefix | None,
        remaining_s: float,
        hint_error: float,
    ) -> None:
        self.index = index
        self.trace = trace
        self.arrival_s = arrival_s
        self.prefix = prefix
        """The system prefix that it shares with other programs, if any."""
        self.remaining_s = remaining_s
        """Model time of the unfinished calls, for clairvoyant policies."""
        self.hint_error = hint_error
        """Factor on all hints of its client."""
        self.missing = [len(set(call.parents)) for call in trace.calls]
        """For each call, how many parents have not finished."""
        self.children: list[list[int]] = [[] for _ in trace.calls]
        for call in trace.calls:
            for parent in set(call.parents):
                self.children[parent].append(call.id)
        self.remaining_calls = len(trace.calls)
        self.remaining_tokens = sum(max(1, call.decode_tokens) for call in trace.calls)
        self.work = sum(work_of(call.new_tokens, max(1, call.decode_tokens)) for call in trace.calls)
        """Of all its calls, for a boost that knows sizes."""
        self.observed = ObservedProgram(ClassKey("", trace.source), trace.calls[0].prefill_tokens)
        """As the learned sizes see it."""
        self.calls: dict[tuple[str, int], EngineCall] = {}
        """Arrived calls by engine and number."""
        self.paths_s: dict[int, float] = {}
        self.cached_tokens = 0
        self.loaded_tokens = 0
        self.recomputed_tokens = 0
        self.wait_s = 0.0
        self.service_s = 0.0
        self.preemptions = 0

    @property
    def program_id(self) -> str:
        """The id under which engines and the process table know it."""
        return str(self.index)

    @property
    def is_idle(self) -> bool:
        """Whether no call has arrived that has not finished."""
        return len(self.calls) + self.remaining_calls == len(self.trace.calls)

    def base(self, engine: str, call: CallTrace) -> EngineCall | None:
        """Return the call at an engine whose context a call extends."""
        return None if call.prefix_from is None else self.calls.get((engine, call.prefix_from))

    def finish_call(self, call: EngineCall, now: float, *, true_cost_s: float) -> list[CallTrace]:
        """Account for a finished call and return the calls that become ready."""
        trace, record = call.trace, call.record
        assert record is not None
        before_s = max((self.paths_s[parent] for parent in trace.parents), default=0.0)
        self.paths_s[trace.id] = before_s + (now - call.arrival_s)
        self.cached_tokens += call.cached_tokens
        self.loaded_tokens += call.loaded_tokens
        self.recomputed_tokens += call.recomputed_tokens
        self.wait_s += record.wait_s
        self.service_s += record.service_s
        self.preemptions += record.preemptions
        self.remaining_calls -= 1
        self.remaining_s -= true_cost_s
        self.remaining_tokens -= call.output_tokens
        for child in self.children[trace.id]:
            self.missing[child] -= 1
        return [self.trace.calls[child] for child in self.children[trace.id] if self.missing[child] == 0]

    def record(self, now: float) -> ProgramRecord:
        """Return the record of the finished program."""
        calls = self.trace.calls
        return ProgramRecord(
            program_id=self.trace.program_id,
            source=self.trace.source,
            arrival_s=self.arrival_s,
            finish_s=now,
            path_s=max(self.paths_s.values()),
            calls=len(calls),
            output_tokens=sum(max(1, call.decode_tokens) for call in calls),
            prompt_tokens=sum(call.prefill_tokens for call in calls),
            cached_tokens=self.cached_tokens,
            loaded_tokens=self.loaded_tokens,
            recomputed_tokens=self.recomputed_tokens,
            wait_s=self.wait_s,
            service_s=self.service_s,
            preemptions=self.preemptions,
        )
