"""The results of a simulation: one record for each program, and totals for each engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from autellix_lab.sim.fleet import FleetMoment


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """One finished program; times in seconds."""

    program_id: str
    source: str
    arrival_s: float
    finish_s: float
    path_s: float
    """Response time of the longest chain of dependent calls."""
    calls: int
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that calls found in the cache when they were first admitted."""
    loaded_tokens: int
    """Those of them that were loaded from host memory."""
    recomputed_tokens: int
    """Tokens prefilled again, since their blocks were gone when a preempted call resumed."""
    wait_s: float
    service_s: float
    preemptions: int
    moves: int = 0
    """Calls that went to another engine than the one before, which took calls as well."""
    returns: int = 0
    """Those of them that went to an engine on which the program had been before."""
    forced_moves: int = 0
    """Calls that went to another engine because the one before had left or drained."""
    moved_tokens: int = 0
    """Prompt tokens that the engine before had, and the next one did not find, in all moves."""

    @property
    def latency_s(self) -> float:
        """Time from arrival to the last answer."""
        return self.finish_s - self.arrival_s

    @property
    def token_latency_s(self) -> float:
        """Program-level token latency (section 6.1)."""
        return self.path_s / self.output_tokens


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Totals of one engine over the run."""

    steps: int
    busy_s: float
    preemptions: int
    swap_s: float
    swaps: int
    """Of one call each, to host memory or back."""
    swapped_blocks: int
    evicted_blocks: int


@dataclass(frozen=True, slots=True)
class FullLoop:
    """The part of a closed loop in which every program that ended made way for another."""

    seconds: float
    """From the start to the first end that nothing followed."""
    calls: int
    """Calls that finished in it."""
    programs: int
    """Programs that ended in it."""


@dataclass(frozen=True, slots=True)
class SimResult:
    """A finished run."""

    programs: list[ProgramRecord]
    """In the order in which they ended."""
    engines: list[EngineTotals]
    makespan_s: float
    peak_programs: int
    """Most programs alive at once."""
    full_loop: FullLoop | None = None
    """Of a closed loop."""
    fleet: list[FleetMoment] = field(default_factory=list)
    """A scaling fleet at each decision."""
