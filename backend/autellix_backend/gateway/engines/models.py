"""The models behind one gateway: which engine lists which, and which engines share some.

Each engine's own list is read when the engine comes up and every 10 s; where engines serve different models,
also when a call names one that none lists. With a single engine nothing is read: that answers for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from autellix_backend.engines.base import Engine
from autellix_backend.engines.probe import read_models
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.engines.supervisor import EngineChange, EngineState
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.errors import UnknownModelError

PERIOD_S = 10.0
TIMEOUT_S = 3.0
LEAST_AGE_S = 1.0
"""The age of the lists at which a call for a model that none lists has them read again."""

logger = logging.getLogger(__name__)


class ModelLists:
    """Keeps the lists of a pool's engines up to date."""

    def __init__(self, pool: EnginePool, api_key: str | None, clock: Callable[[], float]) -> None:
        self.pool = pool
        self._authorization = None if api_key is None else f"Bearer {api_key}"
        self._clock = clock
        self._read_at_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()
        pool.subscribe(self._on_change)

    async def open(self) -> None:
        """Read the lists for the first time, and start reading them again."""
        await self.read()
        self._timer = asyncio.create_task(self._read_for_ever())

    async def close(self) -> None:
        """Undo open()."""
        for task in (self._timer, self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def check(self, model: str | None) -> None:
        """Return if there is an engine for a model; its list may be read again for that.

        Raises:
            UnknownModelError: if no engine lists it, and they do not all serve the same.
        """
        if len(self.pool.handles) < 2 or self.pool.serving(model):
            return
        if self._clock() - self._read_at_s >= LEAST_AGE_S:
            await self.read()
        if not self.pool.serving(model):
            raise UnknownModelError(model, sorted(self.pool.models))

    async def read(self) -> None:
        """Read the lists of all engines that are up; calls that ask meanwhile share one reading."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        handles = [handle for handle in self.pool if handle.supervisor.is_up]
        if len(self.pool) > 1:
            lists = await asyncio.gather(*(self._list_of(handle.engine) for handle in handles))
            for handle, models in zip(handles, lists, strict=True):
                # An engine that did not answer has what it had.
                handle.models = models or handle.models
        self._read_at_s = self._clock()
        self.pool.regroup()

    async def _list_of(self, engine: Engine) -> Mapping[str, object]:
        if not engine.base_url:
            # A replica that has not started yet.
            return {}
        own = engine.authorization if isinstance(engine, RemoteEngine) else None
        return await read_models(engine.base_url, TIMEOUT_S, self._authorization or own)

    async def _read_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), PERIOD_S)
            self._is_due.clear()
            try:
                await self.read()
            except Exception:
                # A task's boundary: one failed round must not end the reading.
                logger.exception("the engines' models could not be read")

    def _on_change(self, change: EngineChange) -> None:
        if change.state is EngineState.UP:
            # It may have been restarted with another model.
            self._is_due.set()
