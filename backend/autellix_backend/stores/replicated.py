"""A table shared by many gateways with a copy at this one, which goes on alone where that is out of reach.

Every call is entered in both. The copy learns from the shared table what other gateways charged; where the
table does not answer in time, the copy's word counts, and a delta (see `deltas`) remembers what happened.
Each round of the reaper tries to come back. A program with a delta stays with the copy until the table has
taken the delta in; all others go to the table at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from autellix_backend.core.policies import Policy
from autellix_backend.stores.base import (
    CallEnd,
    CallStart,
    Counts,
    Inherited,
    ProgramView,
    Reaped,
    StoreUnavailableError,
    UnknownCallError,
)
from autellix_backend.stores.deltas import Delta, Ended, OpenCall, Upload
from autellix_backend.stores.local_copy import LocalCopy
from autellix_backend.stores.redis import RedisStore

MAX_UPLOADS = 64
"""Deltas that are on their way at a time."""
MAX_LATEST_ENDS = 1000
"""Far more than end between two rounds of the reaper, when each gateway learns of the others' ends."""

logger = logging.getLogger(__name__)


class ReplicatedStore:
    """A ProgramStore that answers whatever becomes of the shared one."""

    def __init__(
        self,
        shared: RedisStore,
        local: LocalCopy,
        policy: Policy,
        *,
        on_fallback: Callable[[], None] = lambda: None,
    ) -> None:
        """Join the two; nothing is opened yet.

        Args:
            shared: The table of all gateways.
            local: This gateway's copy.
            policy: Whose rule merges.
            on_fallback: Told of each operation that the copy alone has answered.
        """
        self._shared = shared
        self._local = local
        self._policy = policy
        self._on_fallback = on_fallback
        self._problem: str | None = "it was not opened"
        self._deltas: dict[str, Delta] = {}
        self._uploads: dict[str, Upload] = {}
        self._open: dict[str, OpenCall] = {}
        self._beats: dict[str, float] = {}
        # A dict serves as a set that keeps its order.
        self._closed: dict[str, None] = {}
        self._ended: dict[str, None] = {}
        self._latest_ends: dict[str, None] = {}
        self._writer = secrets.token_hex(6)
        self._version = 0
        self._end_subscribers: list[Callable[[str], None]] = []
        shared.subscribe(self._left_table)
        local.subscribe(self._left_copy)

    async def open(self) -> None:
        """Enter the shared table, if it can be reached."""
        await self._come_back()

    async def close(self) -> None:
        """Leave the shared table; deltas that it has not taken in are lost."""
        await self._shared.close()

    def failure(self) -> str | None:
        """Say why this gateway goes on alone."""
        if self._problem is None:
            return None
        return (
            f"the shared process table cannot be used ({self._problem}): this gateway goes on with its copy"
        )

    async def begin(self, call: CallStart, now: float) -> Inherited:
        """Enter a call; its program inherits to it."""
        inherited = await self._begin_shared(call, now)
        is_shared = inherited is not None
        if inherited is None:
            delta = self._delta(call.program_id, now)
            inherited = await self._local.begin(call, now)
            delta.is_ended = False
            delta.event_s = now
            self._ended.pop(call.program_id, None)
            self._on_fallback()
        else:
            await self._local.begin(call, now)
            self._local.adopt(call.program_id, service_s=inherited.program_service_s, wait_s=inherited.wait_s)
        self._latest_ends.pop(call.program_id, None)
        self._open[call.key] = OpenCall(call, now, is_shared)
        return inherited

    async def _begin_shared(self, call: CallStart, now: float) -> Inherited | None:
        if self._is_alone(call.program_id):
            return None
        try:
            return await self._shared.begin(call, now)
        except (StoreUnavailableError, asyncio.CancelledError) as error:
            # Whether the call has begun there is unknown: the next delta settles it.
            self._delta(call.program_id, now).was_tried = True
            if isinstance(error, asyncio.CancelledError):
                raise
            self._go_alone(error)
            return None

    async def settle(self, end: CallEnd, now: float) -> None:
        """Charge a call to its program; the copy sees to it that this happens once."""
        is_alone = self._is_alone(end.program_id)
        base = self._local.standing(end.program_id)
        await self._local.settle(end, now)
        call = self._open.pop(end.key)
        if is_alone:
            self._charge(call, end, now, base)
            return
        try:
            await self._shared.settle(end, now)
        except UnknownCallError:
            # The table was emptied, or the call was given up and its program has ended since.
            call.is_entered = False
            self._charge(call, end, now, base)
        except asyncio.CancelledError:
            self._charge(call, end, now, base)
            raise
        except StoreUnavailableError as error:
            self._go_alone(error)
            self._charge(call, end, now, base)

    def _charge(self, call: OpenCall, end: CallEnd, now: float, base: dict[str, float] | None) -> None:
        """Remember the end of a call for the table."""
        delta = self._delta(end.program_id, now, base)
        ended = Ended(call.start, call.start_s, end, now)
        if call.is_entered:
            delta.settled.append(ended)
        else:
            delta.fold(self._policy, ended)
        delta.event_s = now
        delta.is_ended |= end.is_final
        self._finish(delta)
        self._on_fallback()

    async def open_session(self, session_id: str, now: float) -> bool:
        """Start or refresh a session."""
        is_new = await self._local.open_session(session_id, now)
        if self._problem is None:
            try:
                return await self._shared.open_session(session_id, now)
            except StoreUnavailableError as error:
                self._go_alone(error)
        self._beats[session_id] = now
        self._closed.pop(session_id, None)
        self._on_fallback()
        return is_new

    async def heartbeat(self, session_id: str, now: float) -> bool:
        """Refresh a session if there is one."""
        was_here = await self._local.heartbeat(session_id, now)
        if self._problem is None:
            try:
                return await self._shared.heartbeat(session_id, now)
            except StoreUnavailableError as error:
                self._go_alone(error)
        if was_here:
            self._beats[session_id] = now
        self._on_fallback()
        return was_here

    async def close_session(self, session_id: str, now: float) -> bool:
        """End a session with the programs that it alone keeps."""
        ended = {name: self._local.standing(name) for name in self._local.kept_by(session_id)}
        was_here = await self._local.close_session(session_id, now)
        try:
            if self._problem is None:
                return await self._shared.close_session(session_id, now)
        except StoreUnavailableError as error:
            self._go_alone(error)
        finally:
            # The table ends those that it knows the session of.
            for program_id, base in ended.items():
                if self._is_alone(program_id):
                    self._note_end(program_id, now, base)
        self._beats.pop(session_id, None)
        self._closed[session_id] = None
        self._on_fallback()
        return was_here

    async def end_program(self, program_id: str, now: float) -> bool:
        """End a program."""
        is_alone = self._is_alone(program_id)
        base = self._local.standing(program_id)
        was_here = await self._local.end_program(program_id, now)
        if not is_alone:
            try:
                return await self._shared.end_program(program_id, now)
            except StoreUnavailableError as error:
                self._go_alone(error)
        self._note_end(program_id, now, base)
        self._on_fallback()
        return was_here

    async def reap(self, now: float) -> Reaped:
        """Come back to the shared table if that is due; remove what is stale."""
        if self._problem is not None:
            await self._come_back()
        reaped = await self._reap_shared(now)
        # While the shared table reaps, this only keeps the copy small.
        forgotten = await self._local.reap(now)
        return forgotten if reaped is None else reaped

    async def program(self, program_id: str) -> ProgramView | None:
        """Return one program with its calls."""
        if not self._is_alone(program_id):
            try:
                return await self._shared.program(program_id)
            except StoreUnavailableError as error:
                self._go_alone(error)
        return await self._local.program(program_id)

    async def programs(
        self, *, prefix: str = "", is_active: bool | None = None, limit: int | None = None
    ) -> list[ProgramView]:
        """Return programs without their calls."""
        if self._problem is None:
            try:
                return await self._shared.programs(prefix=prefix, is_active=is_active, limit=limit)
            except StoreUnavailableError as error:
                self._go_alone(error)
        return await self._local.programs(prefix=prefix, is_active=is_active, limit=limit)

    async def counts(self) -> Counts:
        """Count programs, sessions and running calls."""
        if self._problem is None:
            try:
                return await self._shared.counts()
            except StoreUnavailableError as error:
                self._go_alone(error)
        return await self._local.counts()

    def subscribe(self, on_end: Callable[[str], None]) -> None:
        """Publish the ends of programs, whatever gateway brought them about."""
        self._end_subscribers.append(on_end)

    def check(self) -> None:
        """Assert the copy's invariants, and the shared table's where it can be reached."""
        self._local.check()
        if self._problem is None:
            self._shared.check()

    def _is_alone(self, program_id: str) -> bool:
        return self._problem is not None or program_id in self._deltas or program_id in self._uploads

    def _go_alone(self, error: StoreUnavailableError) -> None:
        if self._problem is None:
            # The others that waited on the same connection only learn that it was given up.
            self._problem = str(error)
            logger.warning("the shared process table cannot be used (%s): going on with the copy", error)
        self._shared.disconnect(error)

    def _delta(self, program_id: str, now: float, base: dict[str, float] | None = None) -> Delta:
        """Return the program's delta, one from here on if there is none."""
        delta = self._deltas.get(program_id)
        if delta is None:
            base = base or self._local.standing(program_id)
            delta = self._deltas[program_id] = Delta(
                program_id=program_id,
                created_s=now,
                event_s=now,
                is_known=base is not None or program_id in self._uploads,
                base=base or {},
            )
        return delta

    def _note_end(self, program_id: str, now: float, base: dict[str, float] | None) -> None:
        """Remember for the table that a program ended, at once or with its last running call."""
        delta = self._delta(program_id, now, base)
        delta.is_ended = True
        self._finish(delta)

    def _finish(self, delta: Delta) -> None:
        """Publish the end of a program that has left the copy, and keep no delta of one that never left it.

        Its end is kept all the same: another gateway may have had the program too.
        """
        if not delta.is_ended or self._local.standing(delta.program_id) is not None:
            return
        if delta.is_known or delta.was_tried:
            self._publish_end(delta.program_id)
        elif self._problem is not None:
            # While the table is used, deltas go there by themselves, and mere ends do not.
            del self._deltas[delta.program_id]
            self._ended[delta.program_id] = None

    async def _reap_shared(self, now: float) -> Reaped | None:
        if self._problem is not None:
            return None
        try:
            await self._upload()
            return await self._shared.reap(now)
        except StoreUnavailableError as error:
            self._go_alone(error)
            return None

    async def _come_back(self) -> None:
        last_epoch = self._shared.epoch
        try:
            await self._shared.open()
            self._prepare(is_lost=last_epoch not in ("", self._shared.epoch))
            while self._beats or self._closed or self._ended:
                await self._replay()
        except StoreUnavailableError as error:
            self._problem = str(error)
            self._shared.disconnect(error)
            return
        logger.info("the shared process table is back, %d programs are to be merged", len(self._deltas))
        self._problem = None

    def _prepare(self, *, is_lost: bool) -> None:
        """Mark what the table has to be told beyond what happened meanwhile."""
        if is_lost:
            # What a table that is gone has taken in counts for nothing.
            self._beats = self._local.sessions()
            # Another gateway may not have heard of them, and restore those programs.
            self._ended = {**self._latest_ends, **self._ended}
        for program_id in self._local.program_ids():
            # Calls may have been given up for lost.
            copy = self._local.view(program_id)
            if copy is not None and (is_lost or copy.active_calls):
                self._delta(program_id, copy.first_arrival_s)
        if is_lost:
            for program_id, delta in self._deltas.items():
                delta.restore(self._local.view(program_id), self._local.path_ends_s(program_id))

    async def _replay(self) -> None:
        """Tell of sessions and ends, all at once; what happens meanwhile is left to be told."""
        beats, self._beats = self._beats, {}
        closed, self._closed = self._closed, {}
        ended, self._ended = self._ended, {}
        try:
            await _all(self._shared.merge_session(name, beat) for name, beat in beats.items())
            await _all(self._shared.close_session(name, 0.0) for name in closed)
            await _all(self._shared.end_program(name, 0.0) for name in ended)
        except StoreUnavailableError:
            self._beats = {**beats, **self._beats}
            self._closed = {**closed, **self._closed}
            self._ended = {**ended, **self._ended}
            raise

    async def _upload(self) -> None:
        """Have the table take in every delta, those that come up meanwhile too."""
        while self._deltas or self._uploads:
            for program_id in list(self._deltas)[:MAX_UPLOADS]:
                if program_id not in self._uploads:
                    self._uploads[program_id] = self._freeze(self._deltas.pop(program_id))
            await _all(self._send(name, upload) for name, upload in list(self._uploads.items()))

    def _freeze(self, delta: Delta) -> Upload:
        program_id = delta.program_id
        running = self._local.running(program_id)
        self._version += 1
        message = {
            **delta.message(self._policy, self._local.view(program_id), running, self._shared.clock.shared),
            "writer": self._writer,
            "version": self._version,
        }
        return Upload(message, tuple(start.key for start, _ in running))

    async def _send(self, program_id: str, upload: Upload) -> None:
        is_there = await self._shared.absorb(upload.message)
        del self._uploads[program_id]
        for key in upload.keys:
            if key in self._open:
                self._open[key].is_entered = True
        if not is_there:
            self._left_table(program_id)

    def _left_table(self, program_id: str) -> None:
        if not self._is_alone(program_id):
            self._local.forget(program_id)
            self._publish_end(program_id)

    def _left_copy(self, program_id: str) -> None:
        # The shared table publishes all other ends.
        if self._is_alone(program_id):
            self._publish_end(program_id)

    def _publish_end(self, program_id: str) -> None:
        """Publish an end unless the program has not begun here since its last one."""
        if program_id in self._latest_ends:
            return
        self._latest_ends[program_id] = None
        if len(self._latest_ends) > MAX_LATEST_ENDS:
            del self._latest_ends[next(iter(self._latest_ends))]
        for on_end in self._end_subscribers:
            on_end(program_id)


async def _all(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run all; raise the first error once all are done."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
