"""The changes that the shared table has not received yet, and how they reach it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from autellix_backend.core.policies import Policy
from autellix_backend.stores.base import CallEnd, CallStart, StoredCall, StoreUnavailableError
from autellix_backend.stores.deltas import Delta
from autellix_backend.stores.local_copy import LocalCopy
from autellix_backend.stores.redis import RedisStore

MAX_UPLOADS = 64
"""Deltas, heartbeats or ends in flight at a time."""

T = TypeVar("T")
Sums = dict[str, float] | None
"""A program's service and waiting, None if it is unknown here."""


class Backlog:
    """One gateway's deltas of programs, and the heartbeats and ends that the table missed.

    A program with a delta stays with the copy until the table has merged the delta.
    """

    def __init__(self, shared: RedisStore, local: LocalCopy, policy: Policy) -> None:
        self._shared = shared
        self._local = local
        self._policy = policy
        self._deltas: dict[str, Delta] = {}
        self._uploads: dict[str, dict[str, Any]] = {}
        # The running calls that the table has for certain.
        self._shared_keys: set[str] = set()
        self.beats: dict[str, float] = {}
        # A dict serves as a set that keeps its order.
        self._closed: dict[str, None] = {}
        self._ended: dict[str, None] = {}
        self._writer = secrets.token_hex(6)
        self._version = 0

    def __len__(self) -> int:
        """Return the number of programs with a delta."""
        return len(self._deltas)

    def __contains__(self, program_id: object) -> bool:
        """Return whether the table may lack changes of a program."""
        return program_id in self._deltas or program_id in self._uploads

    def delta(self, program_id: str, now: float, base: Sums = None) -> Delta:
        """Return the program's delta; a new one starts from its sums so far."""
        delta = self._deltas.get(program_id)
        if delta is None:
            base = base or self._local.sums(program_id)
            delta = self._deltas[program_id] = Delta(
                program_id=program_id,
                created_s=now,
                event_s=now,
                is_known=base is not None or program_id in self._uploads,
                base=base or {},
            )
        return delta

    def begin(self, call: CallStart, now: float, *, is_shared: bool) -> None:
        """Note a call that began in the copy; `is_shared` if it began in the table too."""
        if is_shared:
            self._shared_keys.add(call.key)
            return
        delta = self.delta(call.program_id, now)
        delta.is_ended = False
        delta.event_s = now
        self._ended.pop(call.program_id, None)

    def pop_shared(self, key: str) -> bool:
        """Return whether the table has a running call for certain, and drop it from the backlog."""
        is_shared = key in self._shared_keys
        self._shared_keys.discard(key)
        return is_shared

    def charge(self, call: StoredCall, end: CallEnd, now: float, base: Sums, *, is_shared: bool) -> None:
        """Note the end of a call; `is_shared` if the table has it as running."""
        delta = self.delta(end.program_id, now, base)
        finished = replace(call, end=end, finish_s=now)
        if is_shared:
            delta.settled.append(finished)
        else:
            delta.fold(self._policy, finished)
        delta.event_s = now
        delta.is_ended |= end.is_final

    def end_program(self, program_id: str, now: float, base: Sums) -> None:
        """Note that a program ended, at once or with its last running call."""
        self.delta(program_id, now, base).is_ended = True

    def close_session(self, session_id: str) -> None:
        """Note that a session ended."""
        self.beats.pop(session_id, None)
        self._closed[session_id] = None

    def open_session(self, session_id: str, now: float) -> None:
        """Note that a session was started or refreshed."""
        self.beats[session_id] = now
        self._closed.pop(session_id, None)

    def drop_if_private(self, program_id: str) -> None:
        """Reduce the delta of a program that began and ended out of the table's reach to its mere end.

        Another gateway may have had the program too.
        """
        delta = self._deltas.get(program_id)
        if delta is None or not delta.is_ended or delta.is_known or delta.may_have_begun:
            return
        if self._local.sums(program_id) is None:
            del self._deltas[program_id]
            self._ended[program_id] = None

    def prepare(self, latest_ends: Iterable[str] | None) -> None:
        """Make a delta for each program that the table may have lost.

        `latest_ends` are the programs that ended lately if the whole table was lost, else None.
        """
        is_lost = latest_ends is not None
        if latest_ends is not None:
            # Uploads to the lost table have no effect.
            self.beats = self._local.sessions()
            # Another gateway may not know of these ends yet, and restore the programs.
            self._ended = {**dict.fromkeys(latest_ends), **self._ended}
        for copy in self._local.views():
            # The table may have given up running calls as lost.
            if is_lost or copy.active_calls:
                self.delta(copy.program_id, copy.first_arrival_s)
        if is_lost:
            for program_id, delta in self._deltas.items():
                delta.restore(self._local.view(program_id), self._local.path_ends_s(program_id))

    async def replay(self) -> None:
        """Send heartbeats and ends until none is left, those included that occur meanwhile."""
        shared, owner = self._shared, self._local.owner
        while self.beats or self._closed or self._ended:
            await _replay_some(self.beats, lambda name, beat: shared.merge_session(name, beat, owner(name)))
            await _replay_some(self._closed, lambda name, _: shared.close_session(name, 0.0))
            await _replay_some(self._ended, lambda name, _: shared.end_program(name, 0.0))

    async def upload(self, on_gone: Callable[[str], None]) -> None:
        """Have the table merge every delta, those included that arise meanwhile.

        `on_gone` is called with each program that the table does not have after that.
        """
        while self._deltas or self._uploads:
            for program_id in list(self._deltas)[:MAX_UPLOADS]:
                if program_id not in self._uploads:
                    self._uploads[program_id] = self._freeze(self._deltas.pop(program_id))
            await _all(self._send(name, message, on_gone) for name, message in list(self._uploads.items()))

    def _freeze(self, delta: Delta) -> dict[str, Any]:
        """Return the message of a delta, which later changes leave alone."""
        self._version += 1
        return {
            **delta.message(self._policy, self._local.view(delta.program_id), self._shared.clock.shared),
            "writer": self._writer,
            "version": self._version,
        }

    async def _send(self, program_id: str, message: dict[str, Any], on_gone: Callable[[str], None]) -> None:
        is_there = await self._shared.absorb(message)
        del self._uploads[program_id]
        self._shared_keys.update(
            key for key in message["running"] if self._local.running(program_id, key) is not None
        )
        if not is_there:
            on_gone(program_id)


async def _replay_some(waiting: dict[str, T], send: Callable[[str, T], Coroutine[Any, Any, object]]) -> None:
    """Send the first that wait; after an error they wait again, unless there is something newer.

    All at once, none might be answered in time, at each attempt anew.
    """
    some = dict(itertools.islice(waiting.items(), MAX_UPLOADS))
    for name in some:
        del waiting[name]
    try:
        await _all(send(name, value) for name, value in some.items())
    except StoreUnavailableError:
        for name, value in some.items():
            waiting.setdefault(name, value)
        raise


async def _all(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run all; raise the first error once all are done."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
