"""The running requests to preempt in each step, by the order of `core.machine`."""

from __future__ import annotations

from collections.abc import Collection

from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.call import Call
from autellix_backend.core.preemption import has_earned
from autellix_backend.vllm_plugin.engine_state import SchedulerState
from autellix_backend.vllm_plugin.host_tier import HostTier
from autellix_backend.vllm_plugin.preemption import PreemptionPrices
from autellix_backend.vllm_plugin.ranks import rank_of
from autellix_backend.vllm_plugin.tracker import CallTracker

# vLLM may pass over a request for reasons of its own (LoRA slots, a load that the connector cannot name yet):
# no slot is freed for it in this many steps, and after one that was freed for nothing in twice as many.
_COOLING_STEPS = 16


class StepDecisions:
    """Keeps vLLM's queues in the machine's order, and chooses the requests to preempt."""

    def __init__(
        self, engine: SchedulerState, tracker: CallTracker, prices: PreemptionPrices, host_tier: HostTier
    ) -> None:
        self._engine = engine
        self._blocks = engine.blocks
        self._tracker = tracker
        self._machine = tracker.machine
        self._config = tracker.machine.config
        self._prices = prices
        self._host_tier = host_tier
        self._step = 0
        self._beneficiaries: list[str] = []
        self._cooling: dict[str, tuple[int, int]] = {}
        """The step until which a request cools, and for how many after the next slot freed for nothing."""
        self.slot_preemptions = 0
        self.block_preemptions = 0

    def decide(self, now: float, *, is_holding: bool) -> list[Request]:
        """Update the order, and return the running requests to preempt; none if vLLM begins no prefill."""
        step = self._step
        self._step += 1
        if step % self._config.period_steps:
            return []
        is_paused = self._engine.is_paused
        if not is_paused:
            self._review(now)
        for change in self._machine.tick(now):
            self._reposition(change.call_id)
            call = self._machine.call(change.call_id)
            if call.group is not None:
                # Also if the call itself has a place among all tenants.
                self._engine.order.move_group(rank_of(call, self._machine.boost))
        if is_paused or is_holding:
            return []
        refused = self._blocks.take_refused()
        self._place_tenants()
        if not self._machine.preempts:
            return []
        free = self._engine.free_slots
        if refused is not None and free > 0:
            return self._block_victims(refused, now)
        return self._slot_victims(free, now)

    def on_scheduled(self) -> None:
        """Cool down the requests that vLLM has looked at in the step and passed over."""
        for request in self._engine.order.take_passed_over():
            if self._machine.preempts and self._engine.is_ready(request):
                until, steps = self._cooling.get(request.request_id, (0, _COOLING_STEPS))
                if request.request_id in self._beneficiaries:
                    self._cooling[request.request_id] = self._step + steps, 2 * steps
                else:
                    self._cooling[request.request_id] = max(until, self._step + _COOLING_STEPS), steps
        self._beneficiaries = []

    def forget(self, request_id: str) -> None:
        """Drop a request that leaves."""
        self._cooling.pop(request_id, None)

    def _review(self, now: float) -> None:
        """Hold back the requests of programs that do not fit into KV memory, and release those that do."""
        for request_id in self._engine.order.loading():
            self._tracker.pin(request_id)
        changed = self._machine.review(now, self._step, self._engine.tokens_of)
        for request_id in changed:
            self._reposition(request_id)
        self._host_tier.on_reviewed()
        for hashes in self._tracker.take_to_keep():
            self._blocks.keep(hashes)

    def _place_tenants(self) -> None:
        """Where several tenants share the engine, put the next calls to run in front of all others.

        vLLM orders its queues by one number per request, and the order of tenants changes with every step.
        """
        order: Collection[Call] = ()
        if self._machine.shares.is_shared:
            slots = len(self._engine.running) + self._engine.free_slots
            # Slots that fall free between two decisions are filled by the same order.
            order = self._batch(slots if self._config.period_steps == 1 else 2 * slots)
        for request_id in self._tracker.place(order):
            self._reposition(request_id)

    def _batch(self, slots: int) -> list[Call]:
        """Return the calls that should run, in order: by their own priority, where that counts, then ours."""
        if not self._engine.order.has_priorities:
            return self._machine.batch(slots, admissible=self._is_admissible)
        calls = self._machine.batch(len(self._tracker), admissible=self._is_admissible)
        return sorted(calls, key=lambda call: self._engine.order.given_priority(call.call_id))[:slots]

    def _slot_victims(self, free: int, now: float) -> list[Request]:
        """Return the running requests that the machine's batch replaces, worst first."""
        engine = self._engine
        if not engine.order.has_better_waiting:
            return []
        batch = self._batch(len(engine.running) + free)
        chosen = dict.fromkeys(call.call_id for call in batch)
        running = {request.request_id for request in engine.running}
        gaining = [engine.get(call_id) for call_id in chosen if call_id not in running]
        losing = [r for r in engine.running if r.request_id not in chosen and engine.is_preemptible(r)]
        worst = engine.worst_first(losing)[: max(0, len(gaining) - max(0, free))]
        gaining, worst = self._with_adapters(gaining, worst, max(0, free))
        is_kept = not worst or self._blocks.keep_contexts()
        victims = [request for request in worst if self._may_go(request, now, is_kept=is_kept)]
        self.slot_preemptions += len(victims)
        # vLLM has not passed over a request that stays out because of a price.
        gained = gaining[: max(0, free) + len(victims)] if victims else []
        self._beneficiaries = [request.request_id for request in gained]
        return victims

    def _with_adapters(
        self, gaining: list[Request], worst: list[Request], free: int
    ) -> tuple[list[Request], list[Request]]:
        """Leave out requests whose LoRA adapters find no place, and victims that would go for nothing."""
        while True:
            staying = [request for request in self._engine.running if request not in worst]
            fitting = self._engine.with_adapters(gaining, staying)
            if len(fitting) == len(gaining):
                return gaining, worst
            gaining, worst = fitting, worst[: max(0, len(fitting) - free)]

    def _block_victims(self, refused: Request, now: float) -> list[Request]:
        """Return the worst running requests whose KV blocks let the refused request in, if they suffice."""
        engine = self._engine
        if not engine.is_ready(refused) or self._tracker.is_held_back(refused.request_id):
            return []
        rank = engine.order.rank(refused).number
        missing = self._blocks.missing()
        is_kept = self._blocks.keep_contexts()
        victims: list[Request] = []
        for request in engine.worst_first(engine.running):
            if missing <= 0 and victims:
                break
            if request.priority <= rank:
                break
            can_go = engine.is_preemptible(request) and self._blocks.can_free(request)
            if can_go and self._may_go(request, now, is_kept=is_kept):
                victims.append(request)
                missing -= self._blocks.held(request.request_id)
        # Too little to help: preempting would only make both wait.
        if missing > 0:
            return []
        self.block_preemptions += len(victims)
        return victims

    def _may_go(self, request: Request, now: float, *, is_kept: bool) -> bool:
        """Whether another request may have the slot and the blocks of a running one.

        Args:
            request: The running one.
            now: The time.
            is_kept: Whether the prefix cache keeps its context meanwhile.
        """
        running = len(self._engine.running)
        lost = 0 if is_kept else self._prices.lost_tokens(request)
        call = self._machine.call(request.request_id)
        if not has_earned(call, self._tracker.step_costs.of(lost, running)):
            return False
        is_free = is_kept or self._config.preemption == "always"
        return is_free or self._prices.pays(request, now, running=running)

    def _is_admissible(self, call: Call) -> bool:
        request = self._engine.find(call.call_id)
        if request is None:
            return False
        if request.status == RequestStatus.RUNNING:
            return True
        cools_until, _ = self._cooling.get(call.call_id, (0, 0))
        return self._engine.is_ready(request) and cools_until <= self._step

    def _reposition(self, request_id: str) -> None:
        self._engine.order.reposition(request_id)
