"""One simulated engine: continuous batching as vLLM does it, scheduled by the live machine.

Each step runs the calls that hold a slot, prefills prompts in chunks, and admits waiting calls in the
machine's order while slots, token budget and KV blocks last. Steps of the same calls (no prefill, finish,
arrival or change of level) are taken as one stretch, which an arrival cuts at the end of a step. Decoding
calls cost no simulation time: their next events are forecast in heaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter

from autellix_backend.core.admission.contexts import fill_blocks
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.boost import work_of
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.table import ProcessTable
from autellix_lab.sim.baselines.base import Baseline
from autellix_lab.sim.batch import RunningBatch
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.loads import HostLoads
from autellix_lab.sim.model import EngineModel, attended_pairs
from autellix_lab.sim.stretch import EPSILON, Stretch, steps_within
from autellix_lab.sim.victims import VictimSelector

Decision = tuple[str, str, float]
"""Event (`arrive`, `start`, `preempt`, `finish` or the reason of a level change), call and time."""

LEAST_WAIT_S = 0.001
"""An engine that has calls and no step looks for work again after this time."""


class SimEngine:
    """An engine in virtual time.

    The owner calls submit() when a call arrives, begin() to start a stretch when the engine is idle, and
    end() at the time that begin() or cut() returned.
    """

    def __init__(
        self,
        name: str,
        model: EngineModel,
        config: SchedulerConfig,
        table: ProcessTable,
        log: Callable[[Decision], None] | None = None,
        baseline: Baseline | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.config = config
        kv_tokens = math.inf if model.kv_blocks is None else model.kv_blocks * model.block_tokens
        policy = None if baseline is None else baseline.policy
        fill = fill_blocks(model.block_tokens)
        self.machine = Machine(config, table, kv_tokens, policy, admission=baseline, fill=fill)
        is_priced = self.machine.preempts and config.preemption == "priced"
        self.blocks = CallBlocks(model, is_priced=is_priced) if baseline is None else baseline.blocks
        self.blocks.use_prefill_cost(self.machine.prefill)
        if self.blocks.host is not None:
            self.machine.admission.use_host_memory(self.blocks.load_of, self.blocks.host.total_tokens)
        self.calls: dict[str, EngineCall] = {}
        self._last_calls: dict[str, EngineCall] = {}
        """The last call of each live program that had one here."""
        self.batch = RunningBatch(config, self.machine, self.blocks)
        self.busy_s = 0.0
        self.swap_s = 0.0
        self.preemptions = 0
        self.loads = HostLoads(self.machine, self.blocks)
        self._victims = VictimSelector(
            self.machine, self.batch, self.blocks, self.calls, self.loads.calls, model
        )
        self._arrivals: list[EngineCall] = []
        self._stretch: Stretch | None = None
        self._had_room = True
        """Whether the last step needed no preemption."""
        self._starts = 0
        """Calls that were admitted since the last step."""
        self._log = log

    @property
    def is_idle(self) -> bool:
        """Whether no stretch is in progress."""
        return self._stretch is None

    @property
    def load(self) -> int:
        """Calls that wait or run here."""
        return len(self.calls) + len(self._arrivals)

    def busy_by(self, now: float) -> float:
        """Return the time (s) that it has computed, with the stretch in progress."""
        stretch = self._stretch
        is_computing = stretch is not None and bool(self.batch.calls)
        return self.busy_s + (now - stretch.start_s if is_computing and stretch is not None else 0.0)

    def submit(self, call: EngineCall, now: float) -> None:
        """Accept a call that has arrived."""
        call.arrival_s = now
        self._arrivals.append(call)
        if not self.model.holds_arrivals:
            self._arrive(now)

    def cut(self, now: float) -> float | None:
        """End the current stretch with the step in progress at `now`; return the new end if it changed."""
        stretch = self._stretch
        if stretch is None or stretch.steps == 1:
            return None
        steps = stretch.steps_by(now)
        if self.model.holds_arrivals:
            steps += -(self.batch.steps + steps) % self.config.period_steps
        if steps >= stretch.steps:
            return None
        stretch.steps = steps
        return stretch.end_s

    def begin(self, now: float) -> float | None:
        """Schedule the next steps; return when they end, or None if there is nothing to do."""
        if self.model.holds_arrivals and not self.calls:
            self._advance_idle(now)
        is_last = self._prepare_step(now)
        while not is_last and self._makes_empty_step:
            self.batch.skip_step()
            is_last = self._prepare_step(now)
        if not self.batch.has_work and self.loads.calls:
            # Nothing runs until the first load is over.
            return self._wait(now, max(self.loads.next_end_s - now, LEAST_WAIT_S), 1)
        if not self.batch.calls:
            has_work = self._arrivals or (self.calls and not is_last)
            return self._wait_for_decision(now) if has_work else self._wait_for_admission(now)
        stretch = self._stretch = self._next_step(now)
        if not self.batch.prefilling:
            stretch.steps = self._like_steps(stretch)
        self.swap_s += stretch.delay_s
        return stretch.end_s

    @property
    def _makes_empty_step(self) -> bool:
        """Whether no call is in the step: then it takes no time, and the next one may have calls."""
        is_empty = self.calls and not self.batch.has_work
        return bool(is_empty) and not (self.loads.calls or self.model.holds_arrivals)

    def _prepare_step(self, now: float) -> bool:
        """Decide and admit; return whether another step without calls would find the same."""
        is_decision = self.batch.steps % self.config.period_steps == 0
        if is_decision:
            self._arrive(now)
            self._decide(now)
        self._had_room = self._make_room(now)
        # As in vLLM, a step that had to preempt for want of blocks admits no call.
        if self._had_room and (is_decision or self.model.overprovisions):
            self._admit(now)
        return is_decision and self._had_room

    def end(self, now: float) -> list[EngineCall]:
        """Account for the stretch's tokens and time; return the calls that finished."""
        stretch = self._stretch
        assert stretch is not None, "no stretch is in progress"
        self._stretch = None
        self.blocks.kv.grow(self.batch.steps, stretch.steps)
        if self.batch.calls:
            self.busy_s += stretch.end_s - stretch.start_s
            # As live, a call with one token in a step counts as decoding.
            chunks = [call.chunk for call in self.batch.prefilling.values()]
            prefilled = sum(chunk for chunk in chunks if chunk > 1)
            work = work_of(prefilled, self.batch.decodes + chunks.count(1))
            self.machine.observe_step(work, stretch.mean_step_s, stretch.steps, prefilled)
        done = self.batch.advance(stretch, now)
        done.sort(key=attrgetter("rank"))
        for call in done:
            self._finish(call, now)
        return done

    def check(self) -> None:
        """Assert the invariants of the engine and its parts."""
        self.machine.check()
        self.batch.check()
        running = self.batch.calls
        assert running.keys() <= self.calls.keys()
        assert len(running) <= self.model.max_num_seqs
        for call in self.calls.values():
            assert call.is_running == (call.call_id in running), call.call_id
            is_prefilling = call.call_id in self.batch.prefilling
            assert call.is_decoding == (call.is_running and not is_prefilling), call.call_id

    # Arrivals and departures.

    def _arrive(self, now: float) -> None:
        # As live, where contexts are known by the full blocks of their prompts.
        block_tokens = self.model.block_tokens
        for call in self._arrivals:
            self.batch.bring_up_program(call.program_id)
            self.calls[call.call_id] = call
            if call.prompt_tokens >= block_tokens:
                self._last_calls[call.program_id] = call
            if self.blocks.host is not None:
                self.blocks.host.arrive(call)
            call.state = self.machine.arrive(
                Arrival(
                    call.call_id,
                    call.program_id,
                    is_identified=call.is_identified,
                    thread_id=call.trace.thread,
                    parents=call.parents,
                    expected_s=call.expected_s,
                    hints=call.hints,
                    context=Context(
                        call.prompt_tokens,
                        # As live, where only earlier calls of its program are known.
                        call.shared_tokens // block_tokens * block_tokens if call.is_identified else 0,
                        call.prefix_key,
                        call.prefix_tokens // block_tokens * block_tokens,
                        call.base.call_id if call.base is not None and call.is_identified else None,
                    ),
                ),
                now,
            )
            self._changed("arrive", call, now)
        self._arrivals.clear()

    def _advance_idle(self, now: float) -> None:
        """Bring an idle engine's steps to `now`: where all steps are equal, it has made them without work."""
        if self.model.has_equal_steps:
            self.batch.steps = round(now / self.model.step_s)
        else:
            self.batch.steps += -self.batch.steps % self.config.period_steps

    def _wait_for_decision(self, now: float) -> float:
        """Let time pass to the next decision, which accepts arrivals and admits calls again."""
        period = self.config.period_steps
        return self._wait(now, self.model.step_s, period - self.batch.steps % period)

    def _wait_for_admission(self, now: float) -> float | None:
        """Let time pass until the admission, which holds all calls back, decides again, if it does."""
        wake_s = self.machine.admission.wake_s
        if wake_s == math.inf:
            return None
        step_s = max(self.model.step_s, LEAST_WAIT_S)
        if self.machine.admission.memory is not None:
            # As live, where each step reviews the memory.
            return self._wait(now, step_s, 1)
        return self._wait(now, step_s, max(1, math.ceil((wake_s - now) / step_s)))

    def _wait(self, now: float, step_s: float, steps: int) -> float:
        """Let time pass for some steps without calls; return the end."""
        self._stretch = Stretch(now, step_s, steps)
        return self._stretch.end_s

    def _finish(self, call: EngineCall, now: float) -> None:
        self.batch.bring_up_program(call.program_id)
        self.batch.remove(call)
        call.record = self.machine.finish(
            call.call_id,
            now,
            work=work_of(call.prompt_tokens - call.cached_tokens, call.output_tokens),
            # Without a prefix cache, nothing of it is left.
            context_tokens=call.known if self.model.has_prefix_cache else 0,
        )
        del self.calls[call.call_id]
        self.blocks.release(call)
        if self.blocks.host is not None:
            self.blocks.host.leave(call)
        self._changed("finish", call, now)
        if not call.is_identified:
            self.end_program(call.program_id, now)

    def end_program(self, program_id: str, now: float) -> None:
        """Note that a program has ended."""
        self.machine.end_program(program_id, now)
        self._last_calls.pop(program_id, None)
        if self.blocks.host is not None:
            self.blocks.host.end_program(program_id)

    def _changed(self, event: str, call: EngineCall, now: float) -> None:
        self._victims.is_settled = False
        self._note(event, call, now)

    def _note(self, event: str, call: EngineCall, now: float) -> None:
        if self._log is not None:
            self._log((str(event), call.call_id, now))

    # Decisions, as the vLLM scheduler class makes them.

    def _decide(self, now: float) -> None:
        if self._tick_needs_charges(now):
            for call in self.batch.calls.values():
                self.batch.bring_up(call)
        for call_id in self.machine.review(now, self.batch.steps, self._tokens_of):
            self._changed(
                "admit" if self.machine.call(call_id).is_admitted else "withdraw", self.calls[call_id], now
            )
        if self.blocks.host is not None:
            self.blocks.host.keep(self.machine.admission.take_stored())
        for program_id in self.machine.admission.take_to_keep():
            if program_id in self._last_calls:
                self.blocks.kv.touch(self._last_calls[program_id].segment)
        for change in self.machine.tick(now):
            call = self.calls[change.call_id]
            if call.is_decoding:
                self.batch.bring_up(call)
                self.batch.decoding.forecast_quantum_end(call)
            self._changed(change.reason, call, now)
        for victim in self._victims.select(now):
            self._preempt(victim, now)

    def _tokens_of(self, call_id: str) -> int:
        call = self.calls[call_id]
        return call.known + (self.batch.steps - call.since_step if call.is_decoding else 0)

    def _tick_needs_charges(self, now: float) -> bool:
        """Return whether a tick reads charges that may be out of date."""
        if self.machine.starvation.next_deadline_s <= now or self.machine.quanta.has_deferred:
            return True
        may_be_late = self.config.period_steps > 1 or self.machine.policy.sizes_programs
        return may_be_late and self.machine.quanta.is_due

    def _preempt(self, call: EngineCall, now: float) -> None:
        self.batch.bring_up(call)
        self.batch.remove(call)
        call.chunk = 0
        self.machine.preempt(call.call_id, now, computed_tokens=call.computed)
        self.preemptions += 1
        self._changed("preempt", call, now)
        self.blocks.preempt(call)

    # A step.

    def _make_room(self, now: float) -> bool:
        """Allocate the blocks of the next step; return False if that took a preemption."""
        prefilling = list(self.batch.prefilling.values())
        budget = self.model.token_budget - self.batch.decodes
        for call in prefilling:
            call.chunk = min(call.known - call.computed, budget)
            budget -= call.chunk
        kv = self.blocks.kv
        wanted = sum(map(self.blocks.wanted, prefilling)) + kv.growth(self.batch.steps, 1)
        has_room = wanted <= kv.available
        for call in prefilling if has_room else self._make_way(now):
            self.blocks.extend(call)
        # As in vLLM, running calls evict blocks before waiting ones are looked up in the cache.
        kv.make_free(kv.growth(self.batch.steps, 1))
        return has_room

    def _make_way(self, now: float) -> list[EngineCall]:
        """Preempt until the blocks suffice; return the prefilling calls that are in the step.

        Calls get their tokens and blocks in order, and the last one is preempted until they suffice.
        """
        wanted, budget = 0, self.model.token_budget
        for call in self.batch.calls.values():
            self.batch.bring_up(call)
        calls = self._victims.worst_last()
        for call in calls:
            if not call.is_decoding:
                call.chunk = max(0, min(call.known - call.computed, budget))
            while call.is_running and wanted + self.blocks.wanted(call) > self.blocks.kv.available:
                self._preempt(calls.pop(), now)
            if call.is_running:
                wanted += self.blocks.wanted(call)
                budget -= 1 if call.is_decoding else call.chunk
        return [call for call in self.batch.prefilling.values() if call.chunk]

    def _admit(self, now: float) -> None:
        """Admit waiting calls in the machine's order."""
        slots = self.model.max_num_seqs - len(self.batch.calls)
        budget = self.model.token_budget - self.batch.prefill_tokens - self.batch.decodes
        # As in vLLM, those that have blocks go first.
        admitted = self.loads.end(now, slots, budget) if self.loads.calls else []
        slots, budget = slots - len(admitted), budget - sum(call.chunk for call in admitted)
        waiting = self._victims.waiting - len(admitted) - len(self.loads.calls)
        # The machine must not change during the walk.
        for state in self.machine if min(slots, waiting, budget) > 0 else ():
            if state.is_running or state.is_pinned:
                continue
            call = self.calls[state.call_id]
            # Decoding calls get their next blocks before any new call.
            if not self.blocks.enter(call, budget, self.blocks.kv.growth(self.batch.steps, 1)):
                self._victims.refused = call
                break
            waiting -= 1
            if call.load_blocks:
                self.loads.begin(call, now)
                continue
            admitted.append(call)
            slots, budget = slots - 1, budget - call.chunk
            if min(slots, waiting, budget) <= 0:
                break
        running = len(self.batch.calls) + len(admitted)
        for call in admitted:
            self.machine.start(call.call_id, now)
            self._victims.on_start(call, running)
            self.loads.on_start(call)
            self._starts += 1
            self.batch.add(call)
            self._note("start", call, now)

    def _next_step(self, now: float) -> Stretch:
        """Return the next step of the batch, as a stretch of one."""
        decodes, context_tokens = self.batch.decodes, self.batch.decoding.context_tokens(self.batch.steps)
        pairs = sum(attended_pairs(call.computed, call.chunk) for call in self.batch.prefilling.values())
        step_s = self.model.step_time_s(
            decodes, self.batch.prefill_tokens, self._starts, context_tokens, pairs
        )
        self._starts = 0
        growth_s = decodes * self.model.context_s
        return Stretch(now, step_s, 1, growth_s, self.blocks.take_delay_s())

    def _like_steps(self, stretch: Stretch) -> int:
        """Return how many steps of the same calls fit in before anything may change."""
        if self._victims.may_preempt_for_blocks or not self._had_room:
            return 1
        decoding = self.batch.decoding
        steps = min(decoding.next_finish - self.batch.steps, self._steps_to_change(stretch))
        free = self.model.max_num_seqs - len(self.batch.calls)
        has_unfilled = not self.model.overprovisions and free and self._victims.waiting > 0
        if self._arrivals or has_unfilled or self._victims.is_undecided:
            # The next decision may admit a call.
            steps = min(steps, self.config.period_steps - self.batch.steps % self.config.period_steps)
        if self.loads.calls and free > 0:
            left_s = self.loads.next_end_s - stretch.start_s
            steps = min(steps, max(1, math.ceil(steps_within(left_s, stretch.step_s, stretch.growth_s))))
        steps = min(steps, self.machine.admission.steps_to_review(self.batch.steps))
        return int(max(1, self.blocks.kv.most_steps(self.batch.steps, steps)))

    def _steps_to_change(self, stretch: Stretch) -> float:
        """Return the steps to the decision at which a quantum has ended or a waiting call may starve."""
        is_due = self.machine.quanta.is_due or self.machine.places.are_stale
        change = 0.0 if is_due else self.batch.steps_to_quantum_end(stretch)
        deadline_s = self.machine.starvation.next_deadline_s
        if deadline_s != math.inf:
            left_s = deadline_s - stretch.start_s
            change = min(change, steps_within(left_s, stretch.step_s, stretch.growth_s))
        if change == math.inf:
            return math.inf
        steps = max(1, math.ceil(change - EPSILON))
        return steps + -(self.batch.steps + steps) % self.config.period_steps
