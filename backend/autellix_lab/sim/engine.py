"""One simulated engine: continuous batching as vLLM does it, scheduled by the same machine as the live one.

Each step runs the calls that hold a slot, reads prompts in chunks, and admits waiting calls in the machine's
order while slots, token budget and KV blocks last. Steps that are all alike (nobody reads, finishes, arrives
or changes its level) are taken as one stretch, which an arrival cuts at the end of a step. Calls that write
cost nothing while they do: what happens to them next is foreseen in heaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.policies import Order
from autellix_backend.core.table import ProcessTable
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.stretch import Stretch
from autellix_lab.sim.writing import EPSILON, Writing

__all__ = ["Decision", "SimEngine"]

Decision = tuple[str, str, float]
"""What happened (`arrive`, `start`, `stop`, `finish`, or a reason of a level change), to which call, when."""


class SimEngine:
    """An engine in virtual time. The owner calls submit() when calls arrive, begin() to start a stretch when
    none is under way, and end() at the time that begin() returned or cut() changed it to.
    """

    def __init__(
        self,
        name: str,
        model: EngineModel,
        config: SchedulerConfig,
        table: ProcessTable,
        log: Callable[[Decision], None] | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.config = config
        self.machine = Machine(config, table)
        self._is_ordering = self.machine.policy.order is not Order.ARRIVAL
        self._preempts = self._is_ordering and config.preemption != "never"
        self.blocks = CallBlocks(model, weighs=self._preempts and config.preemption == "priced")
        self.kv = self.blocks.kv
        self.calls: dict[str, EngineCall] = {}
        self.running: dict[str, EngineCall] = {}
        """Those that hold a slot, in the order in which they got it."""
        self.steps = 0
        self.busy_s = 0.0
        self.swap_s = 0.0
        self.preemptions = 0
        self._reading: dict[str, EngineCall] = {}
        self._by_program: dict[str, dict[str, EngineCall]] = {}
        self._writing = Writing(self.machine, self.blocks)
        self._inbox: list[EngineCall] = []
        self._stretch: Stretch | None = None
        self._starts = 0
        """Calls that were let in since the last step."""
        self._refused: EngineCall | None = None
        self._is_settled = False
        """Whether the last decision changed nothing, and nothing has happened since."""
        self._log = log

    @property
    def is_idle(self) -> bool:
        """Whether no stretch is under way."""
        return self._stretch is None

    @property
    def load(self) -> int:
        """Calls that wait or run here."""
        return len(self.calls) + len(self._inbox)

    def submit(self, call: EngineCall, now: float) -> None:
        """Take in a call that has arrived."""
        call.arrival_s = now
        self._inbox.append(call)
        if not self.model.holds_arrivals:
            self._take_in(now)

    def cut(self, now: float) -> float | None:
        """Shorten the stretch under way to the end of the step at `now`; return the new end if it changed."""
        stretch = self._stretch
        if stretch is None or stretch.steps == 1:
            return None
        steps = stretch.steps_by(now)
        if self.model.holds_arrivals:
            steps += -(self.steps + steps) % self.config.period_steps
        if steps >= stretch.steps:
            return None
        stretch.steps = steps
        return stretch.end_s

    def begin(self, now: float) -> float | None:
        """Schedule the next steps; return when they end, or None if there is nothing to do."""
        if self.model.holds_arrivals and not self.calls:
            self._turn_idly(now)
        is_decision = self.steps % self.config.period_steps == 0
        if is_decision:
            self._take_in(now)
            self._decide(now)
        had_room = self._make_room(now)
        # As in vLLM, nobody is let in by a step that had to preempt for want of blocks.
        if had_room and (is_decision or self.model.overprovisions):
            self._admit(now)
        if not self.running:
            may_go_on = self._inbox or (self.calls and not (is_decision and had_room))
            return self._wait_for_decision(now) if may_go_on else None
        tokens = sum(call.chunk for call in self._reading.values())
        step_s = self.model.step_time_s(len(self.running) - len(self._reading), tokens, self._starts)
        self._starts = 0
        steps = 1 if self._reading else self._alike(step_s, now)
        delay_s = self.blocks.take_delay_s()
        self._stretch = Stretch(now, step_s, steps, delay_s)
        self.swap_s += delay_s
        return self._stretch.end_s

    def end(self, now: float) -> list[EngineCall]:
        """Take the stretch's tokens and time into account; return the calls that finished."""
        stretch = self._stretch
        assert stretch is not None, "no stretch is under way"
        self._stretch = None
        self.kv.grow(self.steps, stretch.steps)
        self.steps += stretch.steps
        self.busy_s += stretch.end_s - stretch.start_s
        if self.running:
            # As live, a call that has one token in a step counts as writing.
            read = sum(call.chunk for call in self._reading.values() if call.chunk > 1)
            self.blocks.note_steps(read, stretch.step_s, stretch.steps)
        self._writing.advance(stretch.steps * self._cost(1, 0, stretch.step_s))
        for call in list(self._reading.values()):
            self._read(call, stretch.step_s, now)
        self._writing.end_turns(self.steps)
        done = self._writing.finished(self.steps)
        done.sort(key=self._rank)
        for call in done:
            self._finish(call, now)
        return done

    def check(self) -> None:
        """Assert the invariants of the engine and its parts."""
        self.machine.check()
        assert self.running.keys() <= self.calls.keys()
        assert self._reading.keys() <= self.running.keys()
        assert len(self.running) <= self.model.max_num_seqs
        for call in self.calls.values():
            assert call.is_running == (call.call_id in self.running), call.call_id
            assert call.is_writing == (call.is_running and call.call_id not in self._reading), call.call_id
        together = sum(len(calls) for calls in self._by_program.values())
        assert together == len(self.running)

    # Arrivals and departures.

    def _take_in(self, now: float) -> None:
        for call in self._inbox:
            self._bring_up_program(call.program_id)
            self.calls[call.call_id] = call
            call.state = self.machine.arrive(
                Arrival(
                    call.call_id,
                    call.program_id,
                    thread_id=call.trace.thread,
                    parents=call.parents,
                    expected_s=call.expected_s,
                ),
                now,
            )
            self._note("arrive", call, now)
            self._is_settled = False
        self._inbox.clear()

    def _turn_idly(self, now: float) -> None:
        """Bring an idle engine's loop to now: where all steps are equal it has turned without work."""
        if self.model.has_equal_steps:
            self.steps = round(now / self.model.step_s)
        else:
            self.steps += -self.steps % self.config.period_steps

    def _wait_for_decision(self, now: float) -> float:
        """Let time pass to the next decision, at which calls will be seen or let in again."""
        period = self.config.period_steps
        missing = period - self.steps % period
        self._stretch = Stretch(now, self.model.step_s, missing)
        return self._stretch.end_s

    def _finish(self, call: EngineCall, now: float) -> None:
        self._bring_up_program(call.program_id)
        self._leave_slot(call)
        call.record = self.machine.finish(call.call_id, now)
        del self.calls[call.call_id]
        self.blocks.leave(call)
        self._is_settled = False
        self._note("finish", call, now)

    # Decisions, as the vLLM scheduler class makes them.

    def _decide(self, now: float) -> None:
        if self._tick_reads_charges(now):
            for call in self.running.values():
                self._bring_up(call)
        for change in self.machine.tick(now):
            self._is_settled = False
            call = self.calls[change.call_id]
            if call.is_writing:
                self._bring_up(call)
                self._writing.foresee_turn(call)
            self._note(change.reason, call, now)
        refused, self._refused = self._refused, None
        waiting = len(self.calls) - len(self.running)
        if not (self._preempts and waiting and self.running):
            return
        victims: list[EngineCall] = []
        if refused is not None and len(self.running) < self.model.max_num_seqs:
            victims = self._block_victims(refused, now)
        elif not self._is_settled:
            victims = self._slot_victims(now)
        for victim in victims:
            self._preempt(victim, now)

    def _tick_reads_charges(self, now: float) -> bool:
        """Say whether a tick will look at charges that may be older than now."""
        if self.machine.next_deadline_s <= now or self.machine.has_held_turns:
            return True
        may_be_late = self.config.period_steps > 1 or self.machine.policy.shares_size
        return may_be_late and self.machine.has_turns_due

    def _slot_victims(self, now: float) -> list[EngineCall]:
        """Return the running calls that the machine's batch replaces."""
        chosen = {call.call_id for call in self.machine.batch(self.model.max_num_seqs)}
        losing = [call for call_id, call in self.running.items() if call_id not in chosen]
        gaining = sum(call_id not in self.running for call_id in chosen)
        free = self.model.max_num_seqs - len(self.running)
        worst = sorted(losing, key=self._rank, reverse=True)[: max(0, gaining - free)]
        # Who is not worth its price now may be worth it after the next step.
        self._is_settled = not worst
        is_free = not worst or self._is_free()
        return [call for call in worst if is_free or self._is_worth(call, now)]

    def _block_victims(self, refused: EngineCall, now: float) -> list[EngineCall]:
        """Return the worst running calls whose blocks let the refused call in, if they suffice."""
        if refused.record is not None or refused.is_running:
            return []
        missing = self.blocks.needed(refused.known) - self.kv.available
        is_free = self._is_free()
        victims: list[EngineCall] = []
        for call in sorted(self.running.values(), key=self._rank, reverse=True):
            if missing <= 0 and victims:
                break
            if self._rank(call) <= self._rank(refused):
                break
            if is_free or self._is_worth(call, now):
                self._bring_up(call)
                victims.append(call)
                missing -= call.segment.blocks if call.segment else 0
        return victims if missing <= 0 else []

    def _is_free(self) -> bool:
        """Say whether interruptions cost nothing now, or nobody asks for their price."""
        return self.blocks.are_interruptions_free(call for call in self.calls.values() if not call.is_running)

    def _is_worth(self, call: EngineCall, now: float) -> bool:
        self._bring_up(call)
        return self.blocks.is_worth(call, now, running=len(self.running))

    def _rank(self, call: EngineCall) -> tuple[int, float, int]:
        return self.machine.rank(call.call_id)

    def _preempt(self, call: EngineCall, now: float) -> None:
        self._bring_up(call)
        self._leave_slot(call)
        call.chunk = 0
        self.machine.preempt(call.call_id, now)
        self.preemptions += 1
        self._is_settled = False
        self._note("preempt", call, now)
        self.blocks.preempt(call)

    # A step.

    def _make_room(self, now: float) -> bool:
        """Get the blocks of the next step for the running calls; False if some had to be preempted for it."""
        preemptions = self.preemptions
        budget = self.model.token_budget - (len(self.running) - len(self._reading))
        for call in list(self._reading.values()):
            call.chunk = min(call.known - call.computed, budget)
            budget -= call.chunk
            while call.is_running and not self.blocks.extend(call):
                self._preempt(self._worst(), now)
        while self.kv.growth(self.steps, 1) > self.kv.available:
            self._preempt(self._worst(), now)
        return self.preemptions == preemptions

    def _worst(self) -> EngineCall:
        if self._is_ordering:
            return max(self.running.values(), key=self._rank)
        return next(reversed(self.running.values()))

    def _admit(self, now: float) -> None:
        """Let waiting calls in, in the machine's order."""
        slots = self.model.max_num_seqs - len(self.running)
        waiting = len(self.calls) - len(self.running)
        chunks = sum(call.chunk for call in self._reading.values())
        budget = self.model.token_budget - chunks - (len(self.running) - len(self._reading))
        admitted: list[EngineCall] = []
        # The machine may not be changed while it is walked.
        for state in self.machine if min(slots, waiting, budget) > 0 else ():
            if state.is_running:
                continue
            call = self.calls[state.call_id]
            # Those that write need their next blocks before anybody new gets one.
            if not self.blocks.enter(call, budget, self.kv.growth(self.steps, 1)):
                self._refused = call
                break
            admitted.append(call)
            slots, waiting, budget = slots - 1, waiting - 1, budget - call.chunk
            if min(slots, waiting, budget) <= 0:
                break
        for call in admitted:
            self.machine.start(call.call_id, now)
            self._starts += 1
            self.running[call.call_id] = self._reading[call.call_id] = call
            self._by_program.setdefault(call.program_id, {})[call.call_id] = call
            self._note("start", call, now)

    def _read(self, call: EngineCall, step_s: float, now: float) -> None:
        """Count a step in which a call's tokens were read; after the last of them it writes."""
        if not call.chunk:
            return
        self.machine.charge(call.call_id, self._cost(0, call.chunk, step_s), now, is_reading=call.chunk > 1)
        call.computed += call.chunk
        call.chunk = 0
        if call.computed == call.known:
            call.generated += 1
            del self._reading[call.call_id]
            self._writing.start(call, self.steps)

    def _bring_up(self, call: EngineCall) -> None:
        self._writing.bring_up(call, self.steps)

    def _bring_up_program(self, program_id: str) -> None:
        # The machine is about to look at the service of all its calls.
        for call in self._by_program.get(program_id, {}).values():
            self._bring_up(call)

    def _leave_slot(self, call: EngineCall) -> None:
        del self.running[call.call_id]
        mates = self._by_program[call.program_id]
        del mates[call.call_id]
        if not mates:
            del self._by_program[call.program_id]
        if call.is_writing:
            self._writing.stop(call, self.steps)
        else:
            del self._reading[call.call_id]
            call.chunk = 0

    def _alike(self, step_s: float, now: float) -> int:
        """Return how many steps like the next one can be taken before anything may change."""
        if self._may_make_room():
            return 1
        steps = min(self._writing.next_finish - self.steps, self._steps_to_change(step_s, now))
        free = self.model.max_num_seqs - len(self.running)
        has_unfilled = not self.model.overprovisions and free and len(self.calls) > len(self.running)
        waiting = len(self.calls) - len(self.running)
        is_undecided = self._preempts and waiting and not self._is_settled and self._refused is None
        if self._inbox or has_unfilled or is_undecided:
            # The next decision may let somebody in.
            steps = min(steps, self.config.period_steps - self.steps % self.config.period_steps)
        return int(max(1, self.kv.most_steps(self.steps, steps)))

    def _may_make_room(self) -> bool:
        """Say whether the next decision may preempt for a call that was refused its blocks."""
        refused = self._refused
        if refused is None or refused.record is not None or refused.is_running or not self._preempts:
            return False
        return self._rank(self._worst()) > self._rank(refused)

    def _steps_to_change(self, step_s: float, now: float) -> float:
        """Return the steps until a quantum is used up or a waiting call may starve, on a decision."""
        cost_s = self._cost(1, 0, step_s)
        change = 0.0 if self.machine.has_turns_due else self._writing.steps_to_turn(cost_s)
        deadline_s = self.machine.next_deadline_s
        if deadline_s != math.inf:
            change = min(change, (deadline_s - now) / step_s)
        if change == math.inf:
            return math.inf
        steps = max(1, math.ceil(change - EPSILON))
        return steps + -(self.steps + steps) % self.config.period_steps

    def _cost(self, written: int, read: int, step_s: float) -> float:
        if self.config.service == "measured":
            return step_s
        return self.config.nominal_service_s(read, written)

    def _note(self, event: str, call: EngineCall, now: float) -> None:
        if self._log is not None:
            self._log((str(event), call.call_id, now))
