"""The shared table of programs as one gateway reaches it, or does not."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from autellix_backend.stores.base import StoreUnavailableError
from autellix_backend.stores.redis import RedisStore
from autellix_backend.stores.redis_link import ScriptFailedError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SharedTable:
    """A RedisStore that is not asked while it is out of reach."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self._problem: str | None = "it was not opened"
        self._is_lost = False
        """Whether the loss was logged."""

    @property
    def is_reachable(self) -> bool:
        """Whether the table can be used."""
        return self._problem is None

    def failure(self) -> str | None:
        """Return why this gateway goes on alone."""
        if self._problem is None:
            return None
        return (
            f"the shared process table cannot be used ({self._problem}): this gateway goes on with its copy"
        )

    async def open(self, catch_up: Callable[[bool], Awaitable[int]]) -> None:
        """Join the table for the first time, if it can be reached; the argument is that of `join`."""
        await self.join(catch_up)
        if self._problem is not None:
            logger.warning("%s", self.failure())
            self._is_lost = True

    async def join(self, catch_up: Callable[[bool], Awaitable[int]]) -> None:
        """Join the table, again if need be; on failure it stays out of reach.

        Args:
            catch_up: Sends what the table has missed, and returns the number of programs that are still to
                be merged. It receives whether the table's data were lost.
        """
        last_epoch = self.store.epoch
        try:
            await self.store.open()
            missed = await catch_up(last_epoch not in ("", self.store.epoch))
        except StoreUnavailableError as error:
            self._problem = str(error)
            self.store.disconnect(error)
            return
        if self._is_lost:
            # As loud as the loss: whoever reads of that waits for this.
            logger.warning("the shared process table is back; programs to merge: %d", missed)
        self._is_lost = False
        self._problem = None

    def give_up(self, error: StoreUnavailableError) -> None:
        """Stop asking the table after an error, unless it concerns a single request."""
        if isinstance(error, ScriptFailedError):
            # One request's numbers must not take the table from all others; its program goes on in the copy.
            logger.error("a script of the process table failed: %s", error)
            return
        if self._problem is None:
            # The others that waited on the same connection only learn that it was given up.
            self._problem = str(error)
            self._is_lost = True
            logger.warning("%s", self.failure())
        self.store.disconnect(error)

    async def ask(self, ask: Callable[[RedisStore], Awaitable[T]]) -> T | None:
        """Return the table's answer, None if it cannot be used."""
        if self._problem is not None:
            return None
        try:
            return await ask(self.store)
        except StoreUnavailableError as error:
            self.give_up(error)
            return None
