"""The engines behind one gateway: how they join, drain and leave, and how queued calls get to one of them.

A drained engine gets no further calls. A removed engine leaves with the end of its last call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator

from autellix_backend.engines.base import Engine
from autellix_backend.engines.supervisor import EngineChange
from autellix_backend.gateway.engines.handle import EngineHandle, MakeHandle
from autellix_backend.gateway.engines.queue import QueuedCall
from autellix_backend.gateway.errors import ConflictError, EngineUnavailableError, NotFoundError

JUDGE_PERIOD_S = 0.2
"""How often the calls are judged that are queued for an engine which cannot be sent any."""

logger = logging.getLogger(__name__)


class EnginePool:
    """The engines by name, in the operator's order."""

    def __init__(self, make_handle: MakeHandle, on_left: Callable[[str], None]) -> None:
        """Create an empty pool; `on_left` is called with the name of each engine that has left."""
        self._make_handle = make_handle
        self._on_left = on_left
        self._handles: dict[str, EngineHandle] = {}
        self._listeners: list[Callable[[EngineChange], None]] = []
        self._link_listeners: list[Callable[[EngineHandle], None]] = []
        self._departures: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.is_shutting_down = False
        """Whether the gateway takes no further calls."""

    def __iter__(self) -> Iterator[EngineHandle]:
        return iter(self._handles.values())

    def __len__(self) -> int:
        return len(self._handles)

    def find(self, name: str) -> EngineHandle | None:
        """Return an engine, None if there is none of this name."""
        return self._handles.get(name)

    def get(self, name: str) -> EngineHandle:
        """Return an engine.

        Raises:
            NotFoundError: if there is none of this name.
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
        """Call a listener at every change of any engine, present or future; it must not raise."""
        self._listeners.append(listener)

    def subscribe_links(self, listener: Callable[[EngineHandle], None]) -> None:
        """Call a listener at every change of any engine's report link; it must not raise."""
        self._link_listeners.append(listener)

    async def links_settled(self, timeout_s: float) -> None:
        """Return once it is known what each running engine reports, or after the timeout."""
        links = [handle.link for handle in self if handle.link is not None and handle.supervisor.is_up]
        await asyncio.gather(*(link.settled(timeout_s) for link in links if link.endpoints))

    def on_link_change(self, handle: EngineHandle) -> None:
        """Publish the change of an engine's report link."""
        for listener in self._link_listeners:
            listener(handle)

    def join(self, engine: Engine) -> EngineHandle:
        """Add an engine that has been started.

        Raises:
            ConflictError: if its name is taken.
        """
        self.check_free(engine.name)
        handle = self._make_handle(engine)
        handle.supervisor.subscribe(self._on_change)
        self._handles[engine.name] = handle
        if self._timer is not None:
            handle.open()
            self._judge_queues()
        return handle

    def drain(self, name: str) -> EngineHandle:
        """Give an engine no further calls; those that are queued for it move to other engines.

        Raises:
            NotFoundError: if there is no engine of this name.
            ConflictError: if it is the last that is not drained.
        """
        handle = self.get(name)
        if not any(not other.is_draining for other in self if other is not handle):
            raise ConflictError(
                f"{name} is the last engine that takes calls; expected another one to join first",
                param="name",
            )
        handle.is_draining = handle.queue.is_draining = True
        self._judge_queues()
        return handle

    def undrain(self, name: str) -> EngineHandle:
        """Give a drained engine calls again; one that was not drained stays as it is.

        Raises:
            NotFoundError: if there is no engine of this name.
            ConflictError: if it was removed, and leaves with its last call.
        """
        handle = self.get(name)
        if handle.is_leaving:
            raise ConflictError(
                f"{name} is leaving; expected it to be added again once it has left", param="name"
            )
        handle.is_draining = handle.queue.is_draining = False
        return handle

    def remove(self, name: str) -> EngineHandle:
        """Drain an engine and let it leave with its last call; raises as drain() does."""
        handle = self.drain(name)
        handle.is_leaving = True
        self._part_if_unused(handle)
        return handle

    def open(self) -> None:
        """Open every engine's handle; must be called in the event loop."""
        for handle in self:
            handle.open()
        self._start_timer()

    async def close(self) -> None:
        """Undo open(); the engines go on. May be called twice."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        await asyncio.gather(*self._departures, *(handle.close() for handle in self))

    def shut_down(self) -> None:
        """Take no more calls and refuse the queued ones; those at the engines go on."""
        self.is_shutting_down = True
        for handle in self:
            handle.queue.shut_down()

    @contextlib.asynccontextmanager
    async def turn(self, handle: EngineHandle, call: QueuedCall) -> AsyncIterator[bool]:
        """Wait for a call's turn at an engine, and hold a slot of the engine inside if it may be sent.

        Yields:
            Whether the call may be sent; otherwise it has to move, because only other engines accept calls.

        Raises:
            EngineUnavailableError: if the engine is gone for good, or does not return in time.
            ShuttingDownError: if the gateway shuts down meanwhile.
        """
        handle.queue.enter(call)
        try:
            assert call.turn is not None
            if not call.turn.done():
                self._judge(handle)
            yield await call.turn
        finally:
            handle.queue.leave(call)

    @contextlib.contextmanager
    def use_any(self) -> Iterator[EngineHandle]:
        """Hold the first engine that accepts calls, for a request that is no call."""
        if not self._handles:
            raise EngineUnavailableError("there is no engine")
        handle = next((handle for handle in self if handle.is_accepting()), next(iter(self)))
        self.hold(handle)
        try:
            yield handle
        finally:
            self.release(handle)

    def on_program_ended(self, program_id: str) -> None:
        """Free what the engines keep for a program."""
        for handle in self:
            handle.on_program_ended(program_id)

    def hold(self, handle: EngineHandle) -> None:
        """Count one more request at an engine, which does not leave until it is released."""
        handle.open_calls += 1

    def release(self, handle: EngineHandle) -> None:
        """Count one request less at an engine, which leaves with the last if it was removed."""
        handle.open_calls -= 1
        self._part_if_unused(handle)

    def _on_change(self, change: EngineChange) -> None:
        if (handle := self._handles.get(change.engine)) is not None:
            handle.queue.pump()
        self._judge_queues()
        for listener in self._listeners:
            listener(change)

    def _judge_queues(self) -> None:
        for handle in self:
            self._judge(handle)

    def _judge(self, handle: EngineHandle) -> None:
        if handle.queue.is_blocked:
            can_move = any(other.is_accepting() for other in self if other is not handle)
            handle.queue.judge(can_move=can_move)

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(JUDGE_PERIOD_S, self._on_timer)

    def _on_timer(self) -> None:
        # Time alone may open a breaker again, or end a call's wait.
        self._start_timer()
        for handle in self:
            handle.queue.pump()
        self._judge_queues()

    def _part_if_unused(self, handle: EngineHandle) -> None:
        is_over = handle.is_leaving and not handle.open_calls
        if is_over and self._handles.pop(handle.name, None) is not None:
            task = asyncio.create_task(self._part(handle))
            self._departures.add(task)
            task.add_done_callback(self._departures.discard)

    async def _part(self, handle: EngineHandle) -> None:
        await handle.close()
        self._on_left(handle.name)
        await handle.engine.stop()
        logger.info("engine %s has left", handle.name)
