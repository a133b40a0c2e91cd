"""Which running calls a simulated engine preempts, decided as the vLLM scheduler class decides it."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from autellix_backend.core.call import Call
from autellix_backend.core.machine import Machine
from autellix_backend.core.preemption import StepCosts, has_earned
from autellix_lab.sim.batch import RunningBatch
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.model import EngineModel

_rank = attrgetter("rank")


class VictimSelector:
    """Selects running calls to preempt, for slots or for KV blocks."""

    def __init__(
        self,
        machine: Machine,
        batch: RunningBatch,
        blocks: CallBlocks,
        calls: Mapping[str, EngineCall],
        loading: Mapping[str, EngineCall],
        model: EngineModel,
    ) -> None:
        self.refused: EngineCall | None = None
        """The waiting call that the last admission refused for want of blocks."""
        self.is_settled = False
        """Whether the last decision found nothing to preempt, and nothing has changed since."""
        self._is_ordering = machine.policy.reorders
        self.preempts = machine.preempts
        self._machine = machine
        self._batch = batch
        self._blocks = blocks
        self._calls = calls
        self._loading = loading
        self._slots = model.max_num_seqs
        self._step_costs = StepCosts(budget=model.token_budget, chunk=model.token_budget)
        self._is_priced = machine.config.preemption == "priced"

    @property
    def waiting(self) -> int:
        """Calls of the engine without a slot."""
        return len(self._calls) - len(self._batch.calls)

    @property
    def is_undecided(self) -> bool:
        """Whether the next decision may preempt for a slot."""
        return self.preempts and self.waiting > 0 and not self.is_settled and self.refused is None

    @property
    def may_preempt_for_blocks(self) -> bool:
        """Whether the next decision may preempt for the call that was refused its blocks."""
        refused = self.refused
        if refused is None or refused.record is not None or refused.is_running or not self.preempts:
            return False
        return max(call.rank for call in self._batch.calls.values()) > refused.rank

    def select(self, now: float) -> list[EngineCall]:
        """Return the calls to preempt at a decision."""
        refused, self.refused = self.refused, None
        if not (self.preempts and self.waiting and self._batch.calls):
            return []
        if refused is not None and len(self._batch.calls) < self._slots:
            return self._for_blocks(refused, now)
        return [] if self.is_settled else self._for_slots(now)

    def worst_last(self) -> list[EngineCall]:
        """Return the running calls, which are up to date, the one to preempt first last.

        Under FCFS that is the order of their slots, else that of their ranks behind the calls that have not
        earned their last resume.
        """
        calls = list(self._batch.calls.values())
        if not self._is_ordering:
            return calls
        kept = [call for call in calls if not has_earned(_state(call))]
        return kept + sorted((call for call in calls if has_earned(_state(call))), key=_rank)

    def on_start(self, call: EngineCall, running: int) -> None:
        """Note that a call has got a slot, and what it computes again."""
        state = _state(call)
        if lost := max(0, state.reached_tokens - call.computed):
            state.lose(lost, self._step_costs.of(lost, running))

    def _for_slots(self, now: float) -> list[EngineCall]:
        """Return the running calls that the machine's batch replaces."""
        running = self._batch.calls
        admissible = None if not self._loading else self._is_admissible
        chosen = {call.call_id for call in self._machine.batch(self._slots, admissible=admissible)}
        losing = [call for call_id, call in running.items() if call_id not in chosen]
        gaining = sum(call_id not in running for call_id in chosen)
        free = self._slots - len(running)
        worst = sorted(losing, key=_rank, reverse=True)[: max(0, gaining - free)]
        # A preemption that does not pay yet may pay after the next step.
        self.is_settled = not worst
        is_kept = not worst or self._keep_contexts()
        return [call for call in worst if self._may_go(call, now, is_kept=is_kept)]

    def _for_blocks(self, refused: EngineCall, now: float) -> list[EngineCall]:
        """Return the worst running calls whose blocks suffice for the refused call, or none."""
        if (
            refused.record is not None
            or refused.is_running
            or not self._machine.call(refused.call_id).is_admitted
        ):
            return []
        missing = self._blocks.needed(refused.known) - self._blocks.kv.available
        is_kept = self._keep_contexts()
        victims: list[EngineCall] = []
        for call in sorted(self._batch.calls.values(), key=_rank, reverse=True):
            if missing <= 0 and victims:
                break
            if call.rank <= refused.rank:
                break
            if self._may_go(call, now, is_kept=is_kept):
                victims.append(call)
                missing -= call.segment.blocks if call.segment else 0
        return victims if missing <= 0 else []

    def _is_admissible(self, call: Call) -> bool:
        return call.call_id not in self._loading

    def _keep_contexts(self) -> bool:
        return self._blocks.keep_contexts(call for call in self._calls.values() if not call.is_running)

    def _may_go(self, call: EngineCall, now: float, *, is_kept: bool) -> bool:
        """Whether another call may have the slot and the blocks of a running one."""
        self._batch.bring_up(call)
        running = len(self._batch.calls)
        lost = 0 if is_kept else self._blocks.lost_tokens(call)
        if not has_earned(_state(call), self._step_costs.of(lost, running)):
            return False
        return is_kept or not self._is_priced or self._blocks.preemption_pays(call, now, running=running)


def _state(call: EngineCall) -> Call:
    assert call.state is not None
    return call.state
