"""The shared process table, and a table in memory that serves while the shared one does not answer.

Nothing is merged: a call ends in the table in which it began, and its program starts afresh in the other one.
What the shared table has missed of its own calls and programs, mere ends, is sent when it answers again. Each
round of the reaper tries to join it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from typing_extensions import override

from autellix_backend.core.errors import UnknownCallError
from autellix_backend.stores.base import (
    AnswerSource,
    CallEnd,
    CallStart,
    Counts,
    Inherited,
    ProgramEnd,
    ProgramPage,
    ProgramStore,
    ProgramView,
    Reaped,
    StoreUnavailableError,
)
from autellix_backend.stores.ends import EndFeed
from autellix_backend.stores.memory import MemoryStore
from autellix_backend.stores.redis import RedisStore, lost_end
from autellix_backend.stores.redis_scripts import ScriptFailedError

logger = logging.getLogger(__name__)

MAX_LATE = 10_000
"""The most ends that are kept for the shared table; it removes what is idle by itself."""

T = TypeVar("T")


class FallbackStore(EndFeed, ProgramStore):
    """A ProgramStore that keeps answering while the shared one does not."""

    def __init__(
        self, shared: RedisStore, memory: MemoryStore, *, on_fallback: Callable[[], None] = lambda: None
    ) -> None:
        """Join the two; `on_fallback` is called for each operation that memory answers."""
        super().__init__()
        self._shared = shared
        self._memory = memory
        self._on_fallback = on_fallback
        self._problem: str | None = "it was not opened"
        self._is_lost = False
        """Whether the loss was logged."""
        self._homes: dict[str, RedisStore | MemoryStore] = {}
        """The store of each running call, by its key."""
        self._late: dict[str, Callable[[], Awaitable[object]]] = {}
        """The ends that the shared table has missed."""
        self._shared_programs: set[str] = set()
        """Programs with calls of this gateway in the shared table."""
        shared.subscribe(self._left_shared)
        memory.subscribe(self._left_memory)

    @override
    async def open(self) -> None:
        """Join the shared table, if it can be reached."""
        await self._join()
        if self._problem is not None:
            self._warn()

    @override
    async def close(self) -> None:
        """Leave the shared table; what is in memory is lost."""
        await self._shared.close()

    @override
    def failure(self) -> str | None:
        """Return why this gateway works alone."""
        if self._problem is None:
            return None
        return f"the shared process table cannot be used ({self._problem}): this gateway works alone"

    @override
    async def begin(self, call: CallStart, now: float) -> Inherited:
        """Add a running call to the shared table, or to memory."""
        if self._problem is None:
            try:
                inherited = await self._shared.begin(call, now)
            except (StoreUnavailableError, asyncio.CancelledError) as error:
                # It may have begun all the same.
                self._keep_end(lost_end(call.key, call.program_id), now)
                if isinstance(error, asyncio.CancelledError):
                    raise
                self._give_up(error)
            else:
                self._homes[call.key] = self._shared
                self._shared_programs.add(call.program_id)
                return inherited
        self._on_fallback()
        inherited = await self._memory.begin(call, now)
        self._homes[call.key] = self._memory
        return inherited

    @override
    async def settle(self, end: CallEnd, now: float) -> None:
        """Charge a call to its program in the table in which it began."""
        home = self._homes.pop(end.key, None)
        if home is None:
            raise UnknownCallError(end.key)
        if home is self._memory:
            self._on_fallback()
            if end.is_final:
                self._keep_program_end(end.program_id, now)
            await home.settle(end, now)
            return
        try:
            if self._problem is None:
                await self._shared.settle(end, now)
                return
        except UnknownCallError:
            # The table was emptied, or gave up the call as lost.
            return
        except asyncio.CancelledError:
            self._keep_end(end, now)
            raise
        except StoreUnavailableError as error:
            self._give_up(error)
        self._on_fallback()
        self._keep_end(end, now)

    @override
    async def open_session(self, session_id: str, now: float, owner: str | None = None) -> bool:
        return await self._ask(lambda store: store.open_session(session_id, now, owner))

    @override
    async def session_owner(self, session_id: str) -> str | None:
        """Return a running session's owner; one started in memory runs until its client starts it again."""
        owner = await self._ask(lambda store: store.session_owner(session_id))
        return await self._memory.session_owner(session_id) if owner is None else owner

    @override
    async def heartbeat(self, session_id: str, now: float) -> bool:
        """Refresh a session if there is one; clients start one that is not there again."""
        return await self._ask(lambda store: store.heartbeat(session_id, now))

    @override
    async def close_session(self, session_id: str, now: float) -> bool:
        was_here = await self._memory.close_session(session_id, now)
        was_there = await self._ask(lambda store: store.close_session(session_id, now))
        if self._problem is not None:
            self._keep(f"session {session_id}", lambda: self._shared.close_session(session_id, now))
        return was_here or was_there

    @override
    async def end_program(self, program_id: str, now: float) -> bool:
        was_here = await self._memory.end_program(program_id, now)
        was_there = await self._ask(lambda store: store.end_program(program_id, now))
        if self._problem is not None:
            self._keep_program_end(program_id, now)
        return was_here or was_there

    @override
    async def reap(self, now: float) -> Reaped:
        """Return to the shared table if it can be reached again; remove what is stale."""
        if self._problem is not None:
            await self._join()
        here = await self._memory.reap(now)
        if self._problem is not None:
            return here
        try:
            await self._send_late()
            return await self._shared.reap(now)
        except StoreUnavailableError as error:
            self._give_up(error)
            return here

    @override
    async def keep_answer(self, tenant: str, ids: Sequence[str], source: AnswerSource, now: float) -> None:
        await self._ask(lambda store: store.keep_answer(tenant, ids, source, now))

    @override
    async def find_answer(self, tenant: str, ids: Sequence[str], now: float) -> AnswerSource | None:
        return await self._ask(lambda store: store.find_answer(tenant, ids, now))

    @override
    async def find_calls(self, tenant: str, call_ids: Sequence[str], now: float) -> dict[str, AnswerSource]:
        return await self._ask(lambda store: store.find_calls(tenant, call_ids, now))

    @override
    async def program(self, program_id: str) -> ProgramView | None:
        found = await self._ask(lambda store: store.program(program_id))
        return await self._memory.program(program_id) if found is None else found

    @override
    async def page(
        self, *, prefix: str = "", is_active: bool | None = None, after: str | None = None, limit: int
    ) -> ProgramPage:
        return await self._ask(
            lambda store: store.page(prefix=prefix, is_active=is_active, after=after, limit=limit)
        )

    @override
    async def counts(self) -> Counts:
        return await self._ask(lambda store: store.counts())

    @override
    async def spend(self, day: int, tokens: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Add to the tokens that tenants have used on a day; do nothing while the table cannot be used."""
        return await self._ask(lambda store: store.spend(day, tokens))

    @override
    async def recent_ends(self) -> list[ProgramEnd]:
        """Return the latest ends of the shared table, none if it cannot be used."""
        return await self._ask(lambda store: store.recent_ends())

    async def _ask(self, ask: Callable[[RedisStore | MemoryStore], Awaitable[T]]) -> T:
        """Return the answer of the shared table, or that of memory."""
        if self._problem is None:
            try:
                return await ask(self._shared)
            except StoreUnavailableError as error:
                self._give_up(error)
        self._on_fallback()
        return await ask(self._memory)

    async def _join(self) -> None:
        """Join the shared table, again if need be; the programs in memory end with their running calls."""
        last_epoch = self._shared.epoch
        try:
            await self._shared.open()
        except StoreUnavailableError as error:
            self._problem = str(error)
            return
        if last_epoch not in ("", self._shared.epoch):
            self._on_emptied()
        if self._is_lost:
            # As loud as the loss: whoever reads of that waits for this.
            logger.warning("the shared process table is back")
        self._problem, self._is_lost = None, False
        await self._memory.end_all()

    def _on_emptied(self) -> None:
        # Late ends stay: another gateway may have begun those programs in the new table.
        programs, self._shared_programs = self._shared_programs, set()
        for program_id in programs:
            self.publish(ProgramEnd(program_id=program_id))

    def _give_up(self, error: StoreUnavailableError) -> None:
        """Stop asking the shared table after an error, unless it concerns a single request."""
        if isinstance(error, ScriptFailedError):
            logger.error("a script of the process table failed: %s", error)
        elif self._problem is None:
            self._problem = str(error)
            self._warn()

    def _warn(self) -> None:
        self._is_lost = True
        logger.warning("%s", self.failure())

    def _keep(self, name: str, send: Callable[[], Awaitable[object]]) -> None:
        self._late[name] = send
        if len(self._late) > MAX_LATE:
            del self._late[next(iter(self._late))]

    def _keep_end(self, end: CallEnd, now: float) -> None:
        self._keep(f"call {end.key}", lambda: self._shared.settle(end, now))

    def _keep_program_end(self, program_id: str, now: float) -> None:
        self._keep(f"program {program_id}", lambda: self._shared.end_program(program_id, now))

    async def _send_late(self) -> None:
        for name, send in list(self._late.items()):
            try:
                await send()
            except UnknownCallError:
                # An earlier attempt reached the table, or the table gave up the call as lost.
                pass
            except ScriptFailedError as error:
                self._give_up(error)
            self._late.pop(name, None)

    def _left_shared(self, end: ProgramEnd) -> None:
        self._shared_programs.discard(end.program_id)
        self.publish(end)

    def _left_memory(self, end: ProgramEnd) -> None:
        # What goes on in the shared table has not ended.
        if self._problem is not None or end.program_id not in self._shared_programs:
            self.publish(end)
