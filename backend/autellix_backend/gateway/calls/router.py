"""The choice of an engine for each call, and what the balancer learns from settled calls.

A call may change its engine until the first byte of its answer: when the engine dies, leaves, or is drained
while the call is queued. With one engine there is no choice, and nothing is remembered of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autellix_backend.core.balance import ArrivingCall, Balancer, FinishedCall, Placement
from autellix_backend.core.balance.speed import fastest
from autellix_backend.gateway.calls.body import CallBody
from autellix_backend.gateway.calls.call import Assigned, ReceivedCall
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.errors import EngineUnavailableError, ShuttingDownError
from autellix_backend.identity.program_class import shared_prefix
from autellix_backend.observe.settled_call import Outcome, SettledCall

FIRST_BYTES_PER_TOKEN = 4.0
LEARNING_RATE = 0.05
"""The most that one answer moves the rate: a body with an image, or without its prompt, says nothing about
others."""
MAX_MODELS = 64
"""Further names share one rate, because some servers accept any name."""


class PromptLengths:
    """The lengths of prompts in tokens, estimated before an engine tokenizes them.

    The gateway has no tokenizer. It divides the bytes of the body by the model's bytes per token, learned
    from its answers and 4 until the first one. JSON syntax and the call's options are part of that rate.
    """

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def estimate(self, model: str | None, body_bytes: int) -> int:
        """Return the estimated tokens of a prompt whose body has this size."""
        return int(body_bytes / self._rates.get(self._key(model), FIRST_BYTES_PER_TOKEN))

    def learn(self, model: str | None, body_bytes: int, prompt_tokens: int) -> None:
        """Learn from the tokens that an engine counted."""
        if prompt_tokens <= 0:
            return
        key, seen = self._key(model), body_bytes / prompt_tokens
        rate = self._rates.get(key, FIRST_BYTES_PER_TOKEN)
        self._rates[key] = rate * min(max(seen / rate, 1 - LEARNING_RATE), 1 + LEARNING_RATE)

    def _key(self, model: str | None) -> str:
        is_known = model in self._rates or len(self._rates) < MAX_MODELS
        return model if model is not None and is_known else ""


class Router:
    """Assigns calls to the engines of a pool."""

    def __init__(
        self, pool: EnginePool, make_balancer: Callable[[], Balancer], on_refusal: Callable[[str], None]
    ) -> None:
        self.pool = pool
        self._on_refusal = on_refusal
        self._make_balancer = make_balancer
        self._groups: Sequence[frozenset[str]] = ()
        self._balancers = [make_balancer()]
        """The balancer of each group: a program has a context at an engine of each."""
        self._prompts = PromptLengths()
        self._programs: set[str] = set()
        """The programs that have had a call since they entered the process table."""

    def assign(self, request: ReceivedCall) -> Assigned:
        """Assign an arriving call to an engine; it has to be released in the end.

        Raises:
            EngineUnavailableError: if there is no engine at all.
            OverloadedError: if too many calls wait already.
            ShuttingDownError: if the gateway shuts down.
        """
        body, program_id = request.body, request.identity.program
        prompt_tokens, prefix = self._prompts.estimate(body.model, body.size_bytes), ""
        if self._reads_prefix_of(program_id):
            prefix = shared_prefix(request.tenant.name, body.fields)
        try:
            handle = self._choose(request, prompt_tokens, prefix)
            if not handle.bounds.has_room(body.size_bytes):
                handle = self._least_used_with_room(body) or handle
            if self.pool.is_shutting_down:
                self._on_refusal("draining")
                raise ShuttingDownError
            handle.bounds.admit(body.size_bytes)
        except BaseException:
            self._forget_unless_begun(program_id)
            raise
        handle.hold()
        return Assigned(request=request, handle=handle, prompt_tokens=prompt_tokens, prefix=prefix)

    def reassign(self, call: Assigned) -> None:
        """Move a call to another engine, if one accepts calls."""
        left = call.handle
        handle = self._choose(call.request, call.prompt_tokens, call.prefix, avoided=left)
        if handle is left:
            return
        call.leave_bounds()
        # It was admitted once, and is not refused for a bound that others have reached meanwhile.
        handle.bounds.add(call.request.body.size_bytes)
        handle.hold()
        call.handle, call.is_unanswered = handle, True
        left.release()

    def release(self, call: Assigned) -> None:
        """End a call's assignment."""
        self._forget_unless_begun(call.request.identity.program)
        if call.is_unanswered:
            call.leave_bounds()
        call.handle.release()

    def on_begun(self, program_id: str) -> None:
        """Note that a program is in the process table; it may be known already."""
        self._programs.add(program_id)

    def on_call_settled(self, settled: SettledCall) -> None:
        """Learn from an answer how long prompts are, how fast its engine is, and what that has cached."""
        usage, time_s = settled.answer_usage, settled.engine_time_s
        # The counts of several choices do not say how long one prompt is.
        if settled.outcome != Outcome.OK or settled.record_count != 1 or usage is None:
            return
        self._prompts.learn(settled.model, settled.body_bytes, usage.prompt_tokens)
        handle = self.pool.handles.get(settled.engine)
        if handle is not None:
            handle.speed.learn(
                prefill_tokens=max(0, usage.prompt_tokens - (usage.cached_tokens or 0)),
                decode_tokens=usage.output_tokens,
                duration_s=time_s,
            )
        self._balancers[self._place_of(settled.engine)].finished(
            FinishedCall(
                program_id=settled.start.program_id,
                engine=settled.engine,
                prompt_tokens=usage.prompt_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
            )
        )

    def on_program_ended(self, program_id: str) -> None:
        """Drop what is kept of a program."""
        self._programs.discard(program_id)
        self._forget(program_id)

    def placement(self, program_id: str) -> Placement | None:
        """Return why a program is on its engine; None where memory decided nothing."""
        placements = (balancer.placement(program_id) for balancer in self._balancers)
        return next((placement for placement in placements if placement is not None), None)

    def _choose(
        self, call: ReceivedCall, prompt_tokens: int, prefix: str, avoided: EngineHandle | None = None
    ) -> EngineHandle:
        """Choose an engine; an avoided one only if there is no other."""
        if len(self.pool.handles) == 1:
            return next(iter(self.pool.handles.values()))
        able = self.pool.serving(call.body.model)
        among = {each.name for each in able if each is not avoided and each.is_accepting()}
        # An engine finds the responses that it has stored itself, and no others.
        among = among & {call.identity.engine} or among
        if not among:
            return self._where_to_wait(able, avoided)
        # One that fails calls is avoided unless all do.
        among = {name for name in among if not self._is_refused(call, self.pool.get(name))} or among
        group, balancer = self._group_of(able[0].name)
        arriving = ArrivingCall(call.identity.program, prompt_tokens, prefix, among)
        best = fastest(handle.speed for handle in group if handle.name in among)
        loads = [handle.load(best, is_accepting=handle.is_accepting()) for handle in group]
        chosen = self.pool.get(balancer.assign(arriving, loads))
        for handle in group:
            handle.speed.on_call_placed(is_here=handle is chosen)
        return chosen

    def _is_refused(self, call: ReceivedCall, handle: EngineHandle) -> bool:
        refusals = handle.refusals
        return refusals.pauses(call.caller) or refusals.has_failed(call.identity.program)

    def _group_of(self, engine: str) -> tuple[list[EngineHandle], Balancer]:
        """Return the engines that share models with one, and their balancer."""
        place = self._place_of(engine)
        return [handle for handle in self.pool if handle.name in self._groups[place]], self._balancers[place]

    def _place_of(self, engine: str) -> int:
        """Return the place of an engine's group and balancer."""
        if self._groups is not self.pool.groups:
            self._regroup()
        # It may have left meanwhile.
        return next((place for place, group in enumerate(self._groups) if engine in group), 0)

    def _regroup(self) -> None:
        """Give each group the balancer of one that it shares engines with, else a fresh one."""
        old = list(zip(self._groups, self._balancers, strict=False))
        balancers: list[Balancer] = []
        for group in self.pool.groups:
            kept = (each for engines, each in old if engines & group and each not in balancers)
            balancers.append(next(kept, None) or self._make_balancer())
        self._groups, self._balancers = self.pool.groups, balancers

    def _forget(self, program_id: str) -> None:
        for balancer in self._balancers:
            balancer.forget(program_id)

    def _reads_prefix_of(self, program_id: str) -> bool:
        """Return whether the choice of the engine, or the order there, depends on how its prompt begins."""
        if program_id in self._programs:
            return False
        is_choice = self._balancers[0].reads_prefixes and len(self.pool) > 1
        return is_choice or any(handle.queue.has_policy for handle in self.pool)

    def _where_to_wait(self, able: Sequence[EngineHandle], avoided: EngineHandle | None) -> EngineHandle:
        """Return the engine that a call waits for while none accepts calls; it moves on when one does."""
        if avoided is not None:
            return avoided
        staying = [handle for handle in able if not handle.is_draining]
        if not staying:
            raise EngineUnavailableError("there is no engine that takes calls")
        return min(staying, key=lambda handle: handle.open_calls)

    def _least_used_with_room(self, body: CallBody) -> EngineHandle | None:
        """Return the least used of the engines that accept a call and have room for its body."""
        able, size_bytes = self.pool.serving(body.model), body.size_bytes
        found = [each for each in able if each.is_accepting() and each.bounds.has_room(size_bytes)]
        return min(found, key=lambda handle: handle.open_calls, default=None)

    def _forget_unless_begun(self, program_id: str) -> None:
        if program_id not in self._programs:
            # The store does not have the program, so its end will not be published.
            self._forget(program_id)
