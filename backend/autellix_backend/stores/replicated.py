"""A shared process table with a copy at this gateway, which goes on alone while the table is out of reach.

Every call enters both. The copy receives from the shared table what other gateways charged. While the table
does not answer in time, the copy decides and a backlog collects the changes. Each round of the reaper tries
to reach the table again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from autellix_backend.core.errors import UnknownCallError
from autellix_backend.core.policies import Policy
from autellix_backend.stores.backlog import Backlog
from autellix_backend.stores.base import (
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
from autellix_backend.stores.ends import LatestEnds
from autellix_backend.stores.local_copy import LocalCopy
from autellix_backend.stores.redis import RedisStore
from autellix_backend.stores.shared_table import SharedTable

T = TypeVar("T")


class ReplicatedStore:
    """A ProgramStore that keeps answering while the shared one is out of reach."""

    def __init__(
        self,
        shared: RedisStore,
        local: LocalCopy,
        policy: Policy,
        *,
        on_fallback: Callable[[], None] = lambda: None,
    ) -> None:
        """Join the two; `on_fallback` is called for each operation that the copy alone answers."""
        self._shared = SharedTable(shared)
        self._local = local
        self._backlog = Backlog(shared, local, policy)
        self._on_fallback = on_fallback
        self._ends = LatestEnds()
        shared.subscribe(self._left_table)
        local.subscribe(self._left_copy)

    async def open(self) -> None:
        """Join the shared table, if it can be reached."""
        await self._shared.open(self._catch_up)

    async def close(self) -> None:
        """Leave the shared table; the backlog is lost."""
        await self._shared.store.close()

    def failure(self) -> str | None:
        """Return why this gateway goes on alone."""
        return self._shared.failure()

    async def begin(self, call: CallStart, now: float) -> Inherited:
        """Add a running call to both."""
        inherited = await self._begin_shared(call, now)
        is_shared = inherited is not None
        if inherited is None:
            # From the program's sums before the call.
            self._backlog.delta(call.program_id, now)
            inherited = await self._local.begin(call, now)
            self._on_fallback()
        else:
            await self._local.begin(call, now)
            self._local.adopt(call.program_id, inherited, now)
        self._backlog.begin(call, now, is_shared=is_shared)
        self._ends.on_begin(call.program_id)
        return inherited

    async def _begin_shared(self, call: CallStart, now: float) -> Inherited | None:
        if self._is_alone(call.program_id):
            return None
        try:
            return await self._shared.store.begin(call, now)
        except (StoreUnavailableError, asyncio.CancelledError) as error:
            # Whether the call has begun there is unknown: the next delta settles it.
            self._backlog.delta(call.program_id, now).may_have_begun = True
            if isinstance(error, asyncio.CancelledError):
                raise
            self._shared.give_up(error)
            return None

    async def settle(self, end: CallEnd, now: float) -> None:
        """Charge a call to its program; the copy ensures that this happens once."""
        is_alone = self._is_alone(end.program_id)
        base = self._local.sums(end.program_id)
        call = self._local.running(end.program_id, end.key)
        await self._local.settle(end, now)
        assert call is not None
        is_shared = self._backlog.pop_shared(end.key)
        try:
            if not is_alone:
                await self._shared.store.settle(end, now)
                return
        except UnknownCallError:
            # The table was emptied, or it gave up the call as lost and the program has ended since.
            is_shared = False
        except StoreUnavailableError as error:
            self._shared.give_up(error)
        except asyncio.CancelledError:
            self._backlog.charge(call, end, now, base, is_shared=is_shared)
            self._note_end(end.program_id, was_here=True)
            raise
        self._backlog.charge(call, end, now, base, is_shared=is_shared)
        self._note_end(end.program_id, was_here=True)
        self._on_fallback()

    async def open_session(self, session_id: str, now: float, owner: str | None = None) -> bool:
        """Start or refresh a session."""
        answer = await self._shared.ask(lambda shared: shared.open_session(session_id, now, owner))
        if answer is not None:
            # The copy may still have the owner of a session that ended elsewhere.
            self._local.adopt_session(session_id, now, owner)
            return answer
        is_new = await self._local.open_session(session_id, now, owner)
        self._backlog.open_session(session_id, now)
        self._on_fallback()
        return is_new

    async def session_owner(self, session_id: str) -> str | None:
        """Return a running session's owner."""
        return await self._read(lambda store: store.session_owner(session_id))

    async def heartbeat(self, session_id: str, now: float) -> bool:
        """Refresh a session if there is one."""
        was_here = await self._local.heartbeat(session_id, now)
        answer = await self._shared.ask(lambda shared: shared.heartbeat(session_id, now))
        if answer is not None:
            return answer
        if was_here:
            self._backlog.beats[session_id] = now
        self._on_fallback()
        return was_here

    async def close_session(self, session_id: str, now: float) -> bool:
        """End a session and the programs that it alone keeps."""
        kept = {name: self._local.sums(name) for name in self._local.kept_by(session_id)}
        was_here = await self._local.close_session(session_id, now)
        try:
            answer = await self._shared.ask(lambda shared: shared.close_session(session_id, now))
        finally:
            # The table ends those whose session it knows.
            for program_id, base in kept.items():
                if self._is_alone(program_id):
                    self._backlog.end_program(program_id, now, base)
                    self._note_end(program_id, was_here=True)
        if answer is not None:
            return answer
        self._backlog.close_session(session_id)
        self._on_fallback()
        return was_here

    async def end_program(self, program_id: str, now: float) -> bool:
        """End a program."""
        is_alone = self._is_alone(program_id)
        base = self._local.sums(program_id)
        was_here = await self._local.end_program(program_id, now)
        if not is_alone:
            answer = await self._shared.ask(lambda shared: shared.end_program(program_id, now))
            if answer is not None:
                return answer
        self._backlog.end_program(program_id, now, base)
        self._note_end(program_id, was_here=was_here)
        self._on_fallback()
        return was_here

    async def reap(self, now: float) -> Reaped:
        """Return to the shared table if it can be reached again; remove what is stale."""
        if not self._shared.is_reachable:
            await self._shared.join(self._catch_up)
        reaped = await self._shared.ask(lambda shared: self._reap_shared(shared, now))
        # While the shared table reaps, this only keeps the copy small.
        forgotten = await self._local.reap(now)
        return forgotten if reaped is None else reaped

    async def program(self, program_id: str) -> ProgramView | None:
        """Return one program with its calls."""
        if program_id in self._backlog:
            return self._local.view(program_id)
        return await self._read(lambda store: store.program(program_id))

    async def page(
        self, *, prefix: str = "", is_active: bool | None = None, after: str | None = None, limit: int
    ) -> ProgramPage:
        """Return some programs without their calls."""
        return await self._read(
            lambda store: store.page(prefix=prefix, is_active=is_active, after=after, limit=limit)
        )

    async def counts(self) -> Counts:
        """Count programs, sessions and running calls."""
        return await self._read(lambda store: store.counts())

    async def recent_ends(self) -> list[ProgramEnd]:
        """Return the latest ends of the shared table, none if it cannot be used."""
        return await self._shared.ask(lambda shared: shared.recent_ends()) or []

    def subscribe(self, on_end: Callable[[ProgramEnd], None]) -> None:
        """Publish the ends of programs, whichever gateway ended them."""
        self._ends.subscribe(on_end)

    def _is_alone(self, program_id: str) -> bool:
        return not self._shared.is_reachable or program_id in self._backlog

    async def _read(self, ask: Callable[[ProgramStore], Awaitable[T]]) -> T:
        if self._shared.is_reachable:
            try:
                return await ask(self._shared.store)
            except StoreUnavailableError as error:
                self._shared.give_up(error)
        return await ask(self._local)

    async def _reap_shared(self, shared: RedisStore, now: float) -> Reaped:
        await self._backlog.upload(lambda program_id: self._left_table(ProgramEnd(program_id=program_id)))
        return await shared.reap(now)

    async def _catch_up(self, is_emptied: bool) -> int:
        """Send the table what it missed, but for the deltas, which the reaper sends; return their number."""
        self._backlog.prepare(self._ends if is_emptied else None)
        await self._backlog.replay()
        return len(self._backlog)

    def _left_table(self, end: ProgramEnd) -> None:
        if not self._is_alone(end.program_id):
            self._local.forget(end.program_id)
            self._ends.publish(end)

    def _left_copy(self, end: ProgramEnd) -> None:
        # The shared table publishes all other ends.
        if self._is_alone(end.program_id):
            self._ends.publish(end)

    def _note_end(self, program_id: str, *, was_here: bool) -> None:
        """Publish the end of a program that has left the copy, with the table's answer outstanding."""
        if was_here and self._local.sums(program_id) is None:
            self._ends.publish(ProgramEnd(program_id=program_id))
        # While the table is in use, deltas reach it by themselves, and mere ends do not.
        if not self._shared.is_reachable:
            self._backlog.drop_if_private(program_id)
