"""The engines behind one gateway: which of them gets a call, and how engines join and leave.

Each call is given a seat at the engine that the balancer chooses. It may change its seat until the first byte
of its answer: when its engine dies, goes away, or is drained while the call still waits at the gateway. An
engine that is drained gets no further calls; one that is removed leaves with the last of its calls.

With one engine nothing is chosen, and nothing is remembered of programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autellix_backend.core.balance import Balancer, FinishedCall
from autellix_backend.core.balance.speed import fastest
from autellix_backend.core.errors import NoEngineError
from autellix_backend.engines.base import Engine
from autellix_backend.engines.supervisor import EngineChange
from autellix_backend.gateway.calls.registry import OpenCall, Outcome
from autellix_backend.gateway.engines.handle import EngineHandle, MakeHandle
from autellix_backend.gateway.engines.prompt_lengths import PromptLengths
from autellix_backend.gateway.engines.queue import Admission
from autellix_backend.gateway.errors import ConflictError, EngineUnavailableError, NotFoundError

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Assignment:
    """Where a call is answered: an engine, and the call's part of the bounds before it."""

    member: EngineHandle
    admission: Admission
    program_id: str
    prompt_tokens: int


class EnginePool:
    """The engines by name, in the operator's order."""

    def __init__(self, balancer: Balancer, make_handle: MakeHandle, on_left: Callable[[str], None]) -> None:
        """Begin without engines.

        Args:
            balancer: Chooses where there is a choice.
            make_handle: Builds the way to an engine.
            on_left: Is told the name of an engine that has left.
        """
        self._balancer = balancer
        self._make_member = make_handle
        self._on_left = on_left
        self._handles: dict[str, EngineHandle] = {}
        self._listeners: list[Callable[[EngineChange], None]] = []
        self._prompts = PromptLengths()
        self._programs: set[str] = set()
        """Those with a call since they entered the table; the balancer may remember them."""
        self._departures: set[asyncio.Task[None]] = set()
        self._is_open = False
        self.is_draining = False
        """Whether the gateway ends, and takes no calls."""

    def __iter__(self) -> Iterator[EngineHandle]:
        return iter(self._handles.values())

    def __len__(self) -> int:
        return len(self._handles)

    def get(self, name: str) -> EngineHandle:
        """Return an engine's member.

        Raises:
            NotFoundError: if there is no engine of this name.
        """
        if name not in self._handles:
            raise NotFoundError(f"there is no engine {name!r}", param="name")
        return self._handles[name]

    def free_name(self, kind: str) -> str:
        """Return the first name of this kind (`remote`) that no engine has."""
        names = (f"{kind}-{number}" for number in itertools.count())
        return next(name for name in names if name not in self._handles)

    def check_free(self, name: str) -> None:
        """Check that no engine has this name.

        Raises:
            ConflictError: if one has.
        """
        if name in self._handles:
            raise ConflictError(f"there is an engine {name!r} already", param="name")

    def subscribe(self, listener: Callable[[EngineChange], None]) -> None:
        """Have a listener told of every change of an engine, also of those to come; it must not raise."""
        self._listeners.append(listener)

    def join(self, engine: Engine) -> EngineHandle:
        """Send calls to an engine too, which has been started.

        Raises:
            ConflictError: if there is an engine of its name.
        """
        self.check_free(engine.name)
        member = self._make_member(engine)
        member.supervisor.subscribe(self._tell)
        member.dispatcher.may_leave = lambda: any(
            other.is_accepting() for other in self if other is not member
        )
        self._handles[engine.name] = member
        if self._is_open:
            member.open()
        return member

    def drain(self, name: str) -> EngineHandle:
        """Send an engine no further calls; those that wait for it at the gateway go elsewhere.

        Raises:
            NotFoundError: if there is no engine of this name.
            ConflictError: if it is the last that is not drained.
        """
        member = self.get(name)
        if not any(not other.is_draining for other in self if other is not member):
            raise ConflictError(
                f"{name} is the last engine that takes calls; expected another one to join first",
                param="name",
            )
        member.is_draining = True
        member.dispatcher.retire()
        return member

    def undrain(self, name: str) -> EngineHandle:
        """Send a drained engine calls again; one that was not drained stays as it is.

        Raises:
            NotFoundError: if there is no engine of this name.
            ConflictError: if it is removed already, and leaves with its last call.
        """
        member = self.get(name)
        if member.is_leaving:
            raise ConflictError(
                f"{name} is leaving; expected it to be added again once it has left", param="name"
            )
        member.is_draining = False
        member.dispatcher.reinstate()
        return member

    def remove(self, name: str) -> EngineHandle:
        """Drain an engine and let it leave with its last call; raises as drain() does."""
        member = self.drain(name)
        member.is_leaving = True
        self._let_go(member)
        return member

    def open(self) -> None:
        """Listen to the engines and watch them; must be called in the event loop."""
        self._is_open = True
        for member in self:
            member.open()

    async def close(self) -> None:
        """Undo open(); the engines go on."""
        self._is_open = False
        await asyncio.gather(*self._departures, *(member.close() for member in self))

    def end(self) -> None:
        """Take no more calls and refuse those that wait; the ones at the engines go on."""
        self.is_draining = True
        for member in self:
            member.dispatcher.drain()

    def place(self, program_id: str, model: str | None, body_bytes: int) -> Assignment:
        """Give a call that comes a seat at one of the engines; it must be left in the end.

        Raises:
            EngineUnavailableError: if there is no engine at all.
            OverloadedError: if too many calls wait already.
            ShuttingDownError: if the gateway ends.
        """
        prompt_tokens = self._prompts.estimate(model, body_bytes)
        member = self._choose(program_id, prompt_tokens)
        try:
            member = self._with_room(member, body_bytes)
            admission = member.dispatcher.admit(body_bytes)
        except BaseException:
            self._forget_unless_begun(program_id)
            raise
        member.open_calls += 1
        return Assignment(member, admission, program_id, prompt_tokens)

    def move(self, seat: Assignment) -> None:
        """Give a call a seat at another engine, if one takes calls."""
        member = self._choose(seat.program_id, seat.prompt_tokens, avoided=seat.member)
        if member is seat.member:
            return
        seat.admission.release()
        # It was let in once, and is not refused for a bound that others have reached meanwhile.
        seat.admission = member.dispatcher.take(seat.admission.size_bytes)
        left, seat.member = seat.member, member
        member.open_calls += 1
        self._leave(left)

    def leave(self, seat: Assignment) -> None:
        """Take a call's seat back, for good."""
        seat.admission.release()
        self._leave(seat.member)
        self._forget_unless_begun(seat.program_id)

    def hold(self, call: OpenCall) -> str | None:
        """Say why a call waits at the gateway; None if it does not."""
        member = self._handles.get(call.engine)
        return None if member is None else member.dispatcher.hold(call)

    @contextlib.contextmanager
    def visit(self) -> Iterator[EngineHandle]:
        """Give a request that is no call to the first engine that takes any, inside."""
        if not self._handles:
            raise EngineUnavailableError("there is no engine")
        candidates = [member for member in self if member.is_accepting()] or list(self)
        member = candidates[0]
        member.open_calls += 1
        try:
            yield member
        finally:
            self._leave(member)

    def began(self, call: OpenCall) -> None:
        """Learn that a call's program is in the table."""
        self._programs.add(call.identity.program)

    def settled(self, call: OpenCall, outcome: Outcome, now: float) -> None:
        """Learn from an answer how long prompts are, how fast its engine is, and what that has cached."""
        receipt, usage = call.receipt, call.usage
        # The counts of several choices do not say how long one prompt is.
        if outcome is not Outcome.OK or call.record_count != 1 or receipt is None:
            return
        if receipt.prompt_tokens is not None:
            prompt, written, cached = receipt.prompt_tokens, receipt.output_tokens or 0, receipt.cached_tokens
            duration_s = receipt.service_s
        elif usage is not None and call.sent_s is not None:
            prompt, written, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
            duration_s = now - call.sent_s
        else:
            return
        self._prompts.learn(call.request.model, call.body_bytes, prompt)
        member = self._handles.get(call.engine)
        if member is not None:
            member.speed.learn(
                read_tokens=max(0, prompt - (cached or 0)), written_tokens=written, duration_s=duration_s
            )
        self._balancer.finished(
            FinishedCall(
                program_id=call.identity.program,
                engine=call.engine,
                prompt_tokens=prompt,
                output_tokens=written,
                cached_tokens=cached,
            )
        )

    def program_left(self, program_id: str) -> None:
        """Forget a program that has left the table."""
        self._programs.discard(program_id)
        self._balancer.forget(program_id)

    def _choose(
        self, program_id: str, prompt_tokens: int, avoided: EngineHandle | None = None
    ) -> EngineHandle:
        """Choose an engine; one that is avoided only if there is no other."""
        if len(self._handles) == 1:
            return next(iter(self))
        accepting = {member for member in self if member is not avoided and member.is_accepting()}
        best = fastest(member.speed for member in accepting)
        loads = [member.load(program_id, best, is_accepting=member in accepting) for member in self]
        try:
            name = self._balancer.assign(program_id, prompt_tokens, loads)
        except NoEngineError:
            return self._where_to_wait(avoided)
        for member in self:
            member.speed.on_call_placed(is_here=member.name == name)
        return self._handles[name]

    def _where_to_wait(self, avoided: EngineHandle | None) -> EngineHandle:
        """Return where a call waits while no engine takes calls; it moves on when one does."""
        if avoided is not None:
            return avoided
        staying = [member for member in self if not member.is_draining]
        if not staying:
            raise EngineUnavailableError("there is no engine that takes calls")
        return min(staying, key=lambda member: member.open_calls)

    def _with_room(self, member: EngineHandle, body_bytes: int) -> EngineHandle:
        """Return the engine, or if too many calls wait for it, the least used one that has room."""
        if member.dispatcher.has_room(body_bytes):
            return member
        others = [other for other in self if other.is_accepting() and other.dispatcher.has_room(body_bytes)]
        return min(others, key=lambda other: other.open_calls, default=member)

    def _forget_unless_begun(self, program_id: str) -> None:
        if program_id not in self._programs:
            # The store does not have it, so nobody will tell of its end.
            self._balancer.forget(program_id)

    def _leave(self, member: EngineHandle) -> None:
        member.open_calls -= 1
        self._let_go(member)

    def _let_go(self, member: EngineHandle) -> None:
        if member.is_leaving and not member.open_calls and self._handles.pop(member.name, None) is not None:
            task = asyncio.create_task(self._part(member))
            self._departures.add(task)
            task.add_done_callback(self._departures.discard)

    async def _part(self, member: EngineHandle) -> None:
        await member.close()
        self._on_left(member.name)
        await member.engine.stop()
        logger.info("engine %s has left", member.name)

    def _tell(self, change: EngineChange) -> None:
        for listener in self._listeners:
            listener(change)
