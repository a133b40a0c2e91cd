"""A program in progress in a simulation."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.results import ProgramRecord
from autellix_lab.workload.prefixes import SystemPrefix
from autellix_lab.workload.trace import CallTrace, ProgramTrace


@dataclass(slots=True, eq=False, repr=False)
class LiveProgram:
    """The remaining work of a program, and the sums over its finished calls; times in seconds."""

    index: int
    trace: ProgramTrace
    arrival_s: float
    _: KW_ONLY
    prefix: SystemPrefix | None
    """The system prefix that it shares with other programs, if any."""
    remaining_s: float
    """Model time of the unfinished calls, for clairvoyant policies."""
    hint_error: float
    """Factor on all hints of its client."""
    missing: list[int] = field(init=False)
    """For each call, how many parents have not finished."""
    children: list[list[int]] = field(init=False)
    remaining_calls: int = field(init=False)
    remaining_tokens: int = field(init=False)
    calls: dict[tuple[str, int], EngineCall] = field(default_factory=dict)
    """Arrived calls by engine and number."""
    paths_s: dict[int, float] = field(default_factory=dict)
    wait_s: float = 0.0
    service_s: float = 0.0
    engine: str = ""
    """That of its last call."""
    engines: set[str] = field(default_factory=set)
    """All that had a call of it."""
    moves: int = 0
    returns: int = 0
    forced_moves: int = 0

    def __post_init__(self) -> None:
        calls = self.trace.calls
        self.missing = [len(set(call.parents)) for call in calls]
        self.children = [[] for _ in calls]
        for call in calls:
            for parent in set(call.parents):
                self.children[parent].append(call.id)
        self.remaining_calls = len(calls)
        self.remaining_tokens = sum(max(1, call.decode_tokens) for call in calls)

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

    def place(self, engine: str, *, can_stay: bool) -> None:
        """Note the engine of a call; its engine before may take calls no more."""
        if self.engine and engine != self.engine:
            self.moves += can_stay
            self.returns += can_stay and engine in self.engines
            self.forced_moves += not can_stay
        self.engine = engine
        self.engines.add(engine)

    def finish_call(self, call: EngineCall, now: float, *, true_cost_s: float) -> list[CallTrace]:
        """Account for a finished call and return the calls that become ready."""
        trace, record = call.trace, call.record
        assert record is not None
        before_s = max((self.paths_s[parent] for parent in trace.parents), default=0.0)
        self.paths_s[trace.id] = before_s + (now - call.arrival_s)
        self.wait_s += record.wait_s
        self.service_s += record.service_s
        self.remaining_calls -= 1
        self.remaining_s -= true_cost_s
        self.remaining_tokens -= call.output_tokens
        for child in self.children[trace.id]:
            self.missing[child] -= 1
        return [self.trace.calls[child] for child in self.children[trace.id] if self.missing[child] == 0]

    def _moved(self) -> list[EngineCall]:
        """Return the calls whose context another engine had."""
        return [
            call
            for (engine, _), call in self.calls.items()
            if call.trace.prefix_from is not None and (engine, call.trace.prefix_from) not in self.calls
        ]

    def record(self, now: float) -> ProgramRecord:
        """Return the record of the finished program."""
        calls, made = self.trace.calls, self.calls.values()
        return ProgramRecord(
            program_id=self.trace.program_id,
            source=self.trace.source,
            arrival_s=self.arrival_s,
            finish_s=now,
            path_s=max(self.paths_s.values()),
            calls=len(calls),
            output_tokens=sum(max(1, call.decode_tokens) for call in calls),
            prompt_tokens=sum(call.prefill_tokens for call in calls),
            cached_tokens=sum(call.cached_tokens for call in made),
            loaded_tokens=sum(call.loaded_tokens for call in made),
            recomputed_tokens=sum(call.recomputed_tokens for call in made),
            wait_s=self.wait_s,
            service_s=self.service_s,
            preemptions=sum(call.record.preemptions for call in made if call.record is not None),
            moves=self.moves,
            returns=self.returns,
            forced_moves=self.forced_moves,
            moved_tokens=sum(max(0, call.shared_tokens - call.cached_tokens) for call in self._moved()),
        )
