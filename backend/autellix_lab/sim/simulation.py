"""Programs on simulated engines: events in virtual time, scheduled by the live scheduler's code.

Programs come from an iterator and are dropped when they end. Apart from one small record for each program,
memory grows only with the programs in progress.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from autellix_backend.core.balance import DEFAULT_BALANCER, EngineLoad, FinishedCall
from autellix_backend.core.balance.memory import MemoryReport, memory_of
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.policies import make_policy
from autellix_backend.core.priority import Priority
from autellix_backend.core.table import ProcessTable
from autellix_lab.sim.baselines import BASELINE_NAMES, make_baseline
from autellix_lab.sim.baselines.balancers import TracedCall, make_balancer
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.engine import Decision, SimEngine
from autellix_lab.sim.fleet import Scaling, ScalingFleet
from autellix_lab.sim.live_program import LiveProgram
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.results import EngineTotals, FullLoop, ProgramRecord, SimResult
from autellix_lab.workload.prefixes import SystemPrefix, system_prefix
from autellix_lab.workload.trace import CallTrace, ProgramTrace

Arrivals = Iterable[tuple[float, ProgramTrace]]
"""Programs with their arrival times (s), in order of time."""

_STRETCH_END, _ARRIVAL, _SILENCE, _REVIEW = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """The engines, scheduler and balancer of a run; a bad value raises ValueError that names the field."""

    model: EngineModel
    scheduler: SchedulerConfig
    baseline: str | None = None
    """Another system's scheduler, by name, which replaces the policy and admission of `scheduler`."""
    engines: int = 1
    scaling: Scaling | None = None
    """How their number changes; None keeps it."""
    engine_speeds: tuple[float, ...] = ()
    """Speed of each engine relative to the model; empty: all run at the model's speed."""
    balancer: str = DEFAULT_BALANCER
    """The product's, or another router's (`baselines.balancers`)."""
    threshold_tokens: int = 2048
    report_s: float = 0.5
    """Age from which an engine's report on its memory is replaced, as live ones report twice a second."""
    priorities: Mapping[str, Priority] = field(default_factory=dict)
    """The priority of programs by their source; that of others is the default one."""
    expected_returns: Callable[[ProgramTrace, CallTrace], float | None] | None = None
    """Returns when a client expects the next call, in seconds from this one's end; None if it states none."""
    shares_prefixes: bool = True
    """Whether programs of one class find each other's system prefix in the cache, as in vLLM.

    False computes it for each program, as engines do that salt the cache by tenant. The rule for one class is
    that of system_prefix().
    """
    end_delay_s: float | None = 0.0
    """Time from a program's end until the scheduler learns of it; None if clients announce no ends."""
    idle_s: float = math.inf
    """Time without calls after which a program counts as ended, whether it is over or waits for a tool."""
    unidentified_share: float = 0.0
    """The share of programs whose clients send no identity.

    Each of their calls is a program of its own to the scheduler, and ends with it.
    """
    hint_sigma: float | None = None
    """Sigma of the log-normal error of the clients' hints of remaining tokens; None sends no hints."""
    has_groups: bool = False
    """Whether the `group` of traces is one for the scheduler, as for rollouts of one prompt."""
    seed: int = 0
    """Of the hints' errors; the arrivals determine everything else."""

    def __post_init__(self) -> None:
        if self.engines < 1:
            raise ValueError(f"engines must be at least 1, not {self.engines}")
        if self.baseline is not None and self.baseline not in BASELINE_NAMES:
            raise ValueError(f"baseline must be one of {', '.join(BASELINE_NAMES)}, not {self.baseline!r}")
        if self.baseline is not None and self.engines > 1:
            raise ValueError(f"{self.baseline} is simulated for one engine, not {self.engines}")
        if self.baseline is not None and self.scaling is not None:
            raise ValueError(f"{self.baseline} is simulated for one engine, not for a scaling fleet")
        if self.engine_speeds and len(self.engine_speeds) != self.engines:
            raise ValueError(
                f"engine_speeds must be one for each of {self.engines} engines, not {len(self.engine_speeds)}"
            )
        if any(not 0 < speed < math.inf for speed in self.engine_speeds):
            raise ValueError(f"engine_speeds must be above zero, not {self.engine_speeds}")
        if self.end_delay_s is not None and not self.end_delay_s >= 0:
            raise ValueError(f"end_delay_s must be 0 or more or None, not {self.end_delay_s}")
        if not self.idle_s > 0:
            raise ValueError(f"idle_s must be above zero, not {self.idle_s}")
        if not 0 <= self.unidentified_share <= 1:
            raise ValueError(f"unidentified_share must be from 0 to 1, not {self.unidentified_share}")
        if self.hint_sigma is not None and self.hint_sigma < 0:
            raise ValueError(f"hint_sigma must be 0 or more, not {self.hint_sigma}")
        make_balancer(self.balancer, self.threshold_tokens)

    @property
    def models(self) -> list[EngineModel]:
        """Every engine's model."""
        return [self.model.times_as_fast(speed) for speed in self.engine_speeds or (1.0,) * self.engines]


def simulate(
    arrivals: Arrivals,
    settings: SimSettings,
    *,
    on_program: Callable[[ProgramRecord], None] | None = None,
    log: Callable[[str, Decision], None] | None = None,
) -> SimResult:
    """Run programs to their end.

    Args:
        arrivals: the programs; a call starts when its parents have finished and its gap has passed.
        settings: engines, scheduler and balancer.
        on_program: receives every program as it ends.
        log: receives every decision, with the name of its engine.
    """
    return _Simulation(settings, on_program, log).run([arrivals])


def simulate_bursts(bursts: Iterable[Arrivals], settings: SimSettings) -> SimResult:
    """Run bursts of programs one after the other on the same engines.

    A burst's times count from the end of the last program of the burst before.
    """
    return _Simulation(settings).run(bursts)


def simulate_closed(programs: Iterable[ProgramTrace], present: int, settings: SimSettings) -> SimResult:
    """Run programs in a closed loop: `present` begin at once, and each that ends makes way for the next."""
    return _Simulation(settings).run_closed(programs, present)


class _Simulation:
    def __init__(
        self,
        settings: SimSettings,
        on_program: Callable[[ProgramRecord], None] | None = None,
        log: Callable[[str, Decision], None] | None = None,
    ) -> None:
        self._settings = settings
        self._on_program = on_program
        self._policy = make_policy(settings.scheduler.policy)
        self._table = ProcessTable()
        self._balancer = make_balancer(settings.balancer, settings.threshold_tokens)
        self._log = log
        self._engines: dict[str, SimEngine] = {}
        self._ends: dict[str, int] = {}
        for index, model in enumerate(settings.models):
            self._add_engine(f"engine{index}", model)
        self._left: list[SimEngine] = []
        """Engines that have drained and left."""
        self._fleet = None if settings.scaling is None else ScalingFleet(settings.scaling, self._engines)
        self._source: Iterator[tuple[float, ProgramTrace]] = iter(())
        self._burst_s = 0.0
        """When the present burst began."""
        self._next: tuple[float, ProgramTrace] | None = None
        self._begun = 0
        self._alive: dict[int, LiveProgram] = {}
        self._owners: dict[str, LiveProgram] = {}
        """Programs by the ids of their open calls."""
        # (time, kind, program or 0, number, engine or ""): total, and arrivals go by program, then call. The
        # number is that of the call, of the stretch's end, or of the calls that had arrived at a silence.
        self._events: list[tuple[float, int, int, int, str]] = []
        self._unannounced: dict[int, LiveProgram] = {}
        """Programs that have ended, of which the scheduler does not know yet."""
        self._reports: dict[str, tuple[float, MemoryReport | None]] = {}
        """The time and content of each engine's last report."""
        self._records: list[ProgramRecord] = []
        self._finished_calls = 0
        self._peak = 0
        self._reserve: Iterator[ProgramTrace] | None = None
        """In a closed loop, the programs that have not begun."""
        self._full_loop: FullLoop | None = None

    def run(self, bursts: Iterable[Arrivals]) -> SimResult:
        now = 0.0
        if self._fleet is not None:
            heapq.heappush(self._events, (now, _REVIEW, 0, 0, ""))
        for burst in bursts:
            self._source, self._burst_s = iter(burst), now
            self._draw()
            while self._alive or self._next is not None:
                now = self._next_time()
                self._advance(now)
        totals = [_totals(engine) for engine in (*self._left, *self._engines.values())]
        moments = [] if self._fleet is None else self._fleet.moments
        return SimResult(self._records, totals, now, self._peak, self._full_loop, moments)

    def run_closed(self, programs: Iterable[ProgramTrace], present: int) -> SimResult:
        self._reserve = iter(programs)
        return self.run([[(0.0, program) for program in islice(self._reserve, present)]])

    def _advance(self, now: float) -> None:
        """Begin the programs and handle the events of a moment, then schedule the engines concerned."""
        while self._next is not None and self._next[0] <= now:
            self._begin_program(*self._next)
            self._draw()
        touched: dict[str, SimEngine] = {}
        while self._events and self._events[0][0] <= now:
            engine = self._handle_event(now)
            if engine is not None:
                touched[engine.name] = engine
        for engine in touched.values():
            self._begin_stretch(engine, now)

    def _handle_event(self, now: float) -> SimEngine | None:
        """Handle the next event; return the engine that may begin a stretch, if any."""
        _, kind, index, number, name = heapq.heappop(self._events)
        if kind == _ARRIVAL:
            return self._arrive(self._alive[index], number, now)
        if kind == _SILENCE:
            self._end_silent(index, number, now)
            return None
        if kind == _REVIEW:
            self._review_fleet(now)
            return None
        if self._ends[name] != number:
            return None
        self._end_stretch(self._engines[name], now)
        return self._engines[name]

    def _next_time(self) -> float:
        assert self._events or self._next is not None, "programs were left without an event to wake them"
        times = [self._events[0][0]] if self._events else []
        if self._next is not None:
            times.append(self._next[0])
        return min(times)

    # Programs.

    def _draw(self) -> None:
        before = self._next[0] if self._next is not None else self._burst_s
        drawn = next(self._source, None)
        self._next = None if drawn is None else (self._burst_s + drawn[0], drawn[1])
        if self._next is not None and self._next[0] < before:
            raise ValueError(f"arrivals must not go back in time, as from {before} s to {self._next[0]} s")

    def _begin_program(self, now: float, trace: ProgramTrace) -> None:
        prefix = system_prefix(trace) if self._settings.shares_prefixes else None
        program = LiveProgram(
            self._begun,
            trace,
            now,
            prefix=prefix,
            remaining_s=sum(self._true_cost_s(call, prefix) for call in trace.calls),
            hint_error=self._draw_hint_error(self._begun),
        )
        self._alive[self._begun] = program
        self._peak = max(self._peak, len(self._alive))
        self._begun += 1
        for call in trace.calls:
            if not call.parents:
                self._schedule_call(program, call, now)

    def _draw_hint_error(self, index: int) -> float:
        sigma = self._settings.hint_sigma
        if not sigma:
            return 1.0
        return random.Random(f"hint:{self._settings.seed}:{index}").lognormvariate(0.0, sigma)

    def _schedule_call(self, program: LiveProgram, call: CallTrace, ready_s: float) -> None:
        at_s = ready_s + (call.gap_before_s or 0.0)
        heapq.heappush(self._events, (at_s, _ARRIVAL, program.index, call.id, ""))

    def _end_program(self, program: LiveProgram, now: float) -> None:
        del self._alive[program.index]
        delay_s = self._settings.end_delay_s
        if delay_s == 0:
            self._announce_end(program, now)
        else:
            self._unannounced[program.index] = program
            self._schedule_silence(program, now, math.inf if delay_s is None else delay_s)
        record = program.record(now)
        self._records.append(record)
        if self._on_program is not None:
            self._on_program(record)
        if self._reserve is not None:
            self._begin_next(self._reserve, now)

    def _begin_next(self, reserve: Iterator[ProgramTrace], now: float) -> None:
        """Begin the next program of a closed loop in place of one that has ended, if there is one."""
        following = next(reserve, None)
        if following is not None:
            self._begin_program(now, following)
        elif self._full_loop is None:
            self._full_loop = FullLoop(now, self._finished_calls, len(self._records))

    def _announce_end(self, program: LiveProgram, now: float) -> None:
        """Let scheduler and balancer know that a program has ended."""
        for engine in self._engines.values():
            engine.end_program(program.program_id, now)
        self._balancer.forget(program.program_id)

    def _schedule_silence(self, program: LiveProgram, now: float, delay_s: float = math.inf) -> None:
        """Plan when the scheduler takes a program without calls as ended, unless a call arrives before."""
        at_s = now + min(delay_s, self._settings.idle_s)
        if at_s < math.inf:
            heapq.heappush(self._events, (at_s, _SILENCE, program.index, len(program.calls), ""))

    def _end_silent(self, index: int, arrived: int, now: float) -> None:
        program = self._unannounced.get(index) or self._alive.get(index)
        if program is not None and len(program.calls) == arrived:
            self._unannounced.pop(index, None)
            self._announce_end(program, now)

    # Calls.

    def _arrive(self, program: LiveProgram, number: int, now: float) -> SimEngine:
        trace = program.trace.calls[number]
        call_id, is_identified = f"{program.index}.{number}", self._is_identified(program)
        call = EngineCall(
            call_id,
            program.program_id if is_identified else call_id,
            trace,
            is_identified=is_identified,
            parents=tuple(f"{program.index}.{parent}" for parent in trace.parents),
            prefix=program.prefix,
            hints=Hints(
                class_name=program.trace.source,
                group=program.trace.group if self._settings.has_groups else "",
                priority=self._settings.priorities.get(program.trace.source, Priority.DEFAULT),
                return_s=self._expected_return_s(program.trace, trace),
                expected_tokens=self._expected_tokens(program),
            ),
            expected_s=self._expect(program, trace),
        )
        loads = [self._load(engine, now) for engine in self._engines.values()]
        arriving = TracedCall(
            call.program_id,
            trace.prefill_tokens,
            "" if program.prefix is None else program.prefix.key,
            repeated_tokens=trace.shared_prefix_tokens,
            prefix_tokens=call.prefix_tokens,
        )
        engine = self._engines[self._balancer.assign(arriving, loads)]
        call.base = program.base(engine.name, trace)
        can_stay = program.engine in self._engines and self._is_accepting(program.engine)
        program.place(engine.name, can_stay=can_stay)
        program.calls[engine.name, number] = call
        self._owners[call.call_id] = program
        engine.submit(call, now)
        end_s = engine.cut(now)
        if end_s is not None:
            self._schedule_end(engine, end_s)
        return engine

    def _is_identified(self, program: LiveProgram) -> bool:
        """Whether the client of a program names it; spread evenly over the programs, as they begin."""
        share = self._settings.unidentified_share
        return math.floor((program.index + 1) * share) == math.floor(program.index * share)

    def _expected_return_s(self, program: ProgramTrace, call: CallTrace) -> float | None:
        expected = self._settings.expected_returns
        return None if expected is None else expected(program, call)

    def _expected_tokens(self, program: LiveProgram) -> float | None:
        has_hints = self._settings.hint_sigma is not None
        return program.remaining_tokens * program.hint_error if has_hints else None

    def _memory(self, engine: SimEngine, now: float) -> MemoryReport | None:
        """Return an engine's last report, as old as that of a live engine may be; baselines make none."""
        if self._settings.baseline is not None:
            return None
        at_s, report = self._reports.get(engine.name, (-math.inf, None))
        if now - at_s > self._settings.report_s:
            report = memory_of(engine.machine, now)
            self._reports[engine.name] = now, report
        return report

    def _expect(self, program: LiveProgram, trace: CallTrace) -> float:
        if self._policy.is_clairvoyant:
            return program.remaining_s
        return self._settings.scheduler.nominal_service_s(trace.prefill_tokens, trace.decode_tokens)

    def _true_cost_s(self, call: CallTrace, prefix: SystemPrefix | None) -> float:
        """Return what a call costs in full batches, with its whole prefix in the cache."""
        repeated = prefix.tokens[call.id] if prefix is not None else 0
        new_tokens = call.prefill_tokens - max(call.shared_prefix_tokens, repeated)
        return self._settings.model.call_time_s(new_tokens, max(1, call.decode_tokens), call.prefill_tokens)

    def _finish_call(self, call: EngineCall, engine: SimEngine, now: float) -> None:
        assert call.record is not None
        self._balancer.finished(
            FinishedCall(
                program_id=call.program_id,
                engine=engine.name,
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                cached_tokens=call.cached_tokens,
            )
        )
        if not call.is_identified:
            self._balancer.forget(call.program_id)
        self._finished_calls += 1
        program = self._owners.pop(call.call_id)
        for ready in program.finish_call(
            call, now, true_cost_s=self._true_cost_s(call.trace, program.prefix)
        ):
            self._schedule_call(program, ready, now)
        if program.remaining_calls == 0:
            self._end_program(program, now)
        elif program.is_idle:
            self._schedule_silence(program, now)

    # Engines.

    def _add_engine(self, name: str, model: EngineModel) -> None:
        settings = self._settings
        baseline = None if settings.baseline is None else make_baseline(settings.baseline, model)
        log = _named(self._log, name)
        self._engines[name] = SimEngine(name, model, settings.scheduler, self._table, log, baseline)
        self._ends[name] = 0

    def _review_fleet(self, now: float) -> None:
        """Let engines that have started take calls, let those without calls leave, and decide on others."""
        fleet = self._fleet
        assert fleet is not None
        for name in fleet.take_ready(now):
            self._add_engine(name, self._settings.model)
        for name in list(fleet.draining):
            if self._engines[name].is_idle and not self._engines[name].load:
                self._left.append(self._engines.pop(name))
                self._reports.pop(name, None)
                fleet.on_left(name)
        engines = {
            name: (self._load(engine, now), engine.busy_by(now)) for name, engine in self._engines.items()
        }
        fleet.review(now, engines, len(self._alive))
        heapq.heappush(self._events, (now + fleet.scaling.period_s, _REVIEW, 0, 0, ""))

    def _is_accepting(self, name: str) -> bool:
        return self._fleet is None or name not in self._fleet.draining

    def _load(self, engine: SimEngine, now: float) -> EngineLoad:
        model, running = engine.model, len(engine.batch.calls)
        return EngineLoad(
            name=engine.name,
            running=running,
            waiting=engine.load - running,
            slots=model.max_num_seqs,
            prefill_s_per_token=model.prefill_s,
            decode_s_per_token=model.step_time_s(model.max_num_seqs, 0),
            kv_tokens=math.inf if model.kv_blocks is None else model.kv_blocks * model.block_tokens,
            memory=self._memory(engine, now),
            is_accepting=self._is_accepting(engine.name),
        )

    def _begin_stretch(self, engine: SimEngine, now: float) -> None:
        if engine.is_idle:
            end_s = engine.begin(now)
            if end_s is not None:
                self._schedule_end(engine, end_s)
            elif engine.load:
                raise ValueError(_too_small(engine))

    def _schedule_end(self, engine: SimEngine, end_s: float) -> None:
        # Each stretch and each cut has a number; an end with an older number is void.
        self._ends[engine.name] += 1
        heapq.heappush(self._events, (end_s, _STRETCH_END, 0, self._ends[engine.name], engine.name))

    def _end_stretch(self, engine: SimEngine, now: float) -> None:
        for call in engine.end(now):
            self._finish_call(call, engine, now)


def _named(log: Callable[[str, Decision], None] | None, name: str) -> Callable[[Decision], None] | None:
    return None if log is None else lambda decision: log(name, decision)


def _totals(engine: SimEngine) -> EngineTotals:
    return EngineTotals(
        steps=engine.batch.steps,
        busy_s=engine.busy_s,
        preemptions=engine.preemptions,
        swap_s=engine.swap_s,
        swaps=engine.blocks.swaps,
        swapped_blocks=engine.blocks.swapped_blocks,
        evicted_blocks=engine.blocks.kv.evicted_blocks,
    )


def _too_small(engine: SimEngine) -> str:
    call = max(engine.calls.values(), key=lambda call: call.known)
    return (
        f"kv_blocks is {engine.model.kv_blocks}: call {call.call_id} with {call.known} tokens does not fit "
        f"into {engine.name} even alone"
    )
