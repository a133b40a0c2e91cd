"""The engines behind one gateway: how they join, drain and leave.

A drained engine gets no further calls. A removed engine leaves with the end of its last call.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from autellix_backend.engines.base import Engine
from autellix_backend.engines.supervisor import EngineChange
from autellix_backend.gateway.engines.handle import EngineHandle, OnSnapshot
from autellix_backend.gateway.engines.model_groups import groups_of
from autellix_backend.gateway.engines.refusals import Caller
from autellix_backend.gateway.errors import ConflictError, EngineUnavailableError, NotFoundError
from autellix_backend.reports.snapshot import EngineSnapshot

REVIEW_PERIOD_S = 0.2
"""How often queued calls are reviewed: sent, moved to another engine or refused."""

logger = logging.getLogger(__name__)


class EnginePool:
    """The engines by name, in the operator's order."""

    def __init__(self, make_handle: Callable[..., EngineHandle], on_left: Callable[[str], None]) -> None:
        """Create an empty pool.

        Args:
            make_handle: Builds a handle from an engine and what the pool itself tells it.
            on_left: Is called with the name of each engine that has left.
        """
        self._make_handle = make_handle
        self._on_left = on_left
        self.handles: dict[str, EngineHandle] = {}
        """The engines by name."""
        self._listeners: list[Callable[[EngineChange], None]] = []
        self._link_listeners: list[Callable[[EngineHandle], None]] = []
        self._snapshot_listeners: list[OnSnapshot] = []
        self._departures: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.groups: Sequence[frozenset[str]] = ()
        """The names of engines that share models; as of the last regroup()."""
        self.is_shutting_down = False
        """Whether the gateway takes no further calls."""

    def __iter__(self) -> Iterator[EngineHandle]:
        return iter(self.handles.values())

    def __len__(self) -> int:
        return len(self.handles)

    def find(self, name: str) -> EngineHandle | None:
        """Return an engine, None if there is none of this name."""
        return self.handles.get(name)

    def get(self, name: str) -> EngineHandle:
        """Return an engine.

        Raises:
            NotFoundError: if there is none of this name.
        """
        if name not in self.handles:
            raise NotFoundError(f"there is no engine {name!r}", param="name")
        return self.handles[name]

    def free_name(self, kind: str) -> str:
        """Return the first name of this kind (`remote`) that no engine has."""
        names = (f"{kind}-{number}" for number in itertools.count())
        return next(name for name in names if name not in self.handles)

    def check_free(self, name: str) -> None:
        """Check that no engine has this name.

        Raises:
            ConflictError: if one has.
        """
        if name in self.handles:
            raise ConflictError(f"there is an engine {name!r} already", param="name")

    @property
    def models(self) -> dict[str, object]:
        """The models that the engines list, each as the first of them describes it."""
        found: dict[str, object] = {}
        for handle in self:
            found |= {name: facts for name, facts in handle.models.items() if name not in found}
        return found

    def serving(self, model: str | None) -> list[EngineHandle]:
        """Return the engines that may be asked for a model, or by default for the first engine's first one.

        Where no engine lists it, that is for the engines to decide, unless they serve different models.
        """
        handles = list(self)
        if model is None and handles:
            model = next(iter(handles[0].models), None)
        listing = [handle for handle in handles if model in handle.models]
        if listing or len(self.groups) < 2:
            return listing or handles
        return [handle for handle in handles if not handle.models]

    def regroup(self) -> None:
        """Take note of engines that came or left, and of changed lists of models."""
        groups = groups_of({handle.name: handle.models for handle in self})
        if groups != self.groups:
            # A new list only then: the router keeps a balancer for each group until it sees another list.
            self.groups = groups

    def can_move_from(self, name: str, caller: Caller, is_leaving: bool) -> bool:
        """Return whether another engine than this accepts such calls.

        One that is paused for failing them counts only where a call has to leave.
        """
        others = (each for each in self.serving(caller.model) if each.name != name and each.is_accepting())
        return any(is_leaving or not handle.refusals.pauses(caller) for handle in others)

    def subscribe(self, listener: Callable[[EngineChange], None]) -> None:
        """Call a listener at every change of any engine, present or future; it must not raise."""
        self._listeners.append(listener)

    def subscribe_links(self, listener: Callable[[EngineHandle], None]) -> None:
        """Call a listener at every change of any engine's report link; it must not raise."""
        self._link_listeners.append(listener)

    def subscribe_snapshots(self, listener: OnSnapshot) -> None:
        """Call a listener with an engine's name, a rank's last snapshot and the next; it must not raise."""
        self._snapshot_listeners.append(listener)

    async def links_settled(self, timeout_s: float) -> None:
        """Return once it is known what each running engine reports, or after the timeout."""
        links = [handle.link for handle in self if handle.supervisor.is_up]
        await asyncio.gather(*(link.settled(timeout_s) for link in links if link.endpoints))

    def join(self, engine: Engine) -> EngineHandle:
        """Add an engine that has been started.

        Raises:
            ConflictError: if its name is taken.
        """
        self.check_free(engine.name)
        handle = self._make_handle(
            engine,
            can_move=partial(self.can_move_from, engine.name),
            on_snapshot=self._on_snapshot,
            on_link_change=self._on_link_change,
        )
        handle.supervisor.subscribe(self._on_change)
        handle.on_unused = partial(self._on_unused, handle)
        self.handles[engine.name] = handle
        self.regroup()
        if self._timer is not None:
            handle.open()
            logger.info("engine %s has joined, at %s", engine.name, engine.base_url)
            self._review_queues()
        return handle

    def drain(self, name: str) -> EngineHandle:
        """Send an engine no further calls; its queued calls move to other engines.

        Raises:
            NotFoundError: if there is no engine of this name.
            ConflictError: if it is the last that is not drained.
        """
        handle = self.get(name)
        if all(other.is_draining for other in self if other is not handle):
            raise ConflictError(
                f"{name} is the last engine that takes calls; expected another one to join first",
                param="name",
            )
        handle.queue.is_draining = True
        self._review_queues()
        return handle

    def undrain(self, name: str) -> EngineHandle:
        """Send a drained engine calls again; no effect on other engines.

        Raises:
            NotFoundError: if there is no engine of this name.
            ConflictError: if it was removed, and leaves with its last call.
        """
        handle = self.get(name)
        if handle.is_leaving:
            raise ConflictError(
                f"{name} is leaving; expected it to be added again once it has left", param="name"
            )
        handle.queue.is_draining = False
        return handle

    def remove(self, name: str) -> EngineHandle:
        """Drain an engine and let it leave with its last call; raises as drain() does."""
        handle = self.drain(name)
        handle.leave()
        return handle

    def open(self) -> None:
        """Open every engine's handle; must be called in the event loop."""
        for handle in self:
            handle.open()
        self._start_timer()

    async def close(self) -> None:
        """Undo open(); the engines keep running. May be called twice."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        await asyncio.gather(*self._departures, *(handle.close() for handle in self))

    def shut_down(self) -> None:
        """Take no more calls and refuse the queued ones; those at the engines go on."""
        self.is_shutting_down = True
        for handle in self:
            handle.queue.shut_down()

    def choices(self, name: str | None, caller: Caller) -> list[EngineHandle]:
        """Return the engines for a request that is no call, the best one first.

        Args:
            name: The only one that can answer it, if that is known and it is there.
            caller: Whose request it is.

        Raises:
            EngineUnavailableError: if there is none.
        """
        if name is not None and name in self.handles:
            return [self.handles[name]]
        able = self.serving(caller.model)
        if not able:
            raise EngineUnavailableError("there is no engine")
        accepting = [handle for handle in able if handle.is_accepting()] or able[:1]
        return sorted(accepting, key=lambda handle: handle.refusals.pauses(caller))

    def on_program_ended(self, program_id: str) -> None:
        """Free what the engines keep for a program."""
        for handle in self:
            handle.on_program_ended(program_id)

    def _on_change(self, change: EngineChange) -> None:
        self._review_queues()
        for listener in self._listeners:
            listener(change)

    def _on_snapshot(self, engine: str, before: EngineSnapshot | None, after: EngineSnapshot) -> None:
        for listener in self._snapshot_listeners:
            listener(engine, before, after)

    def _on_link_change(self, handle: EngineHandle) -> None:
        for listener in self._link_listeners:
            listener(handle)

    def _review_queues(self) -> None:
        for handle in self:
            handle.review()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(REVIEW_PERIOD_S, self._on_timer)

    def _on_timer(self) -> None:
        # Calls may be sent again, or a call's wait end, by the passage of time alone.
        self._start_timer()
        self._review_queues()

    def _on_unused(self, handle: EngineHandle) -> None:
        del self.handles[handle.name]
        self.regroup()
        task = asyncio.create_task(self._part(handle))
        self._departures.add(task)
        task.add_done_callback(self._departures.discard)

    async def _part(self, handle: EngineHandle) -> None:
        await handle.close()
        self._on_left(handle.name)
        await handle.engine.stop()
        logger.info("engine %s has left", handle.name)
