"""The running sessions and their owners, as far as this gateway can tell.

A client starts its session in parallel to its first calls, and the store may have lost sessions that run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from autellix_backend.stores.base import ProgramStore

HEARTBEAT_S = 10.0
"""The heartbeat period that clients are asked to keep: rare against their calls."""
LOST_HEARTBEATS = 3
"""Heartbeats that a client may miss before its session ends."""
SESSION_TTL_S = LOST_HEARTBEATS * HEARTBEAT_S
START_WINDOW_S = 2.0
"""How long before or after its session's start a call may lack the token."""
POLL_S = 0.1
"""How often a call that waits for its session asks whether that has started at another gateway."""
KNOWN_FOR_S = 1.0
"""How long an answer of a shared table is trusted, and a token may outlive its session elsewhere."""
MAX_KNOWN = 10_000


class RunningSessions:
    """Asks the store for running sessions, and waits for their starts."""

    def __init__(
        self, store: ProgramStore, *, clock: Callable[[], float], is_shared: bool, grace_s: float
    ) -> None:
        """Know no session yet.

        Args:
            store: Where sessions and their owners are.
            clock: Monotonic seconds.
            is_shared: Whether the store is shared with other processes.
            grace_s: How long unknown sessions count as running after a restart or an outage of a shared
                table, until their clients' next heartbeats start them again.
        """
        self._store = store
        self._clock = clock
        self._known_for_s = KNOWN_FOR_S if is_shared else 0.0
        self._known: dict[str, tuple[str, float]] = {}
        self._grace_s = grace_s
        # A shared table outlives the gateway, and knows its sessions.
        self._grace_end_s = clock() + (0.0 if is_shared else grace_s)
        self._ended: dict[str, None] = {}
        self._starts_s: dict[str, float] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def note_start(self, session_id: str) -> None:
        """Note that a session has started, and release the calls that wait for it."""
        now = self._clock()
        self._ended.pop(session_id, None)
        self._starts_s = {name: at for name, at in self._starts_s.items() if now - at < START_WINDOW_S}
        self._starts_s[session_id] = now
        for future in self._waiting.pop(session_id, ()):
            if not future.done():
                future.set_result(None)

    def note_end(self, session_id: str) -> None:
        """Note that a session was ended: its token ends with it."""
        self._known.pop(session_id, None)
        self._starts_s.pop(session_id, None)
        if self._clock() < self._grace_end_s:
            self._ended[session_id] = None

    async def owner(self, session_id: str) -> str | None:
        """Return a running session's owner, None if it is not known to run."""
        now = self._clock()
        known = self._known.get(session_id)
        if known is not None and now < known[1]:
            return known[0]
        owner = await self._store.session_owner(session_id)
        self._known.pop(session_id, None)
        if owner is not None and self._known_for_s:
            self._known[session_id] = (owner, now + self._known_for_s)
            if len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return owner

    def may_be_lost(self, session_id: str) -> bool:
        """Return whether the store may have lost a session that runs, or cannot tell."""
        if self._store.failure() is not None:
            # The shared table may come back without the session.
            self._grace_end_s = self._clock() + self._grace_s
            return True
        return self._clock() < self._grace_end_s and session_id not in self._ended

    async def starts_in_time(self, session_id: str) -> bool:
        """Wait a moment for a session's start; return whether it starts, or started a moment ago."""
        start_s = self._starts_s.get(session_id)
        if start_s is not None and self._clock() - start_s < START_WINDOW_S:
            return True
        # A session that runs already started too long ago.
        if await self._store.session_owner(session_id) is not None:
            return False
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(session_id, set())
        waiting.add(future)
        try:
            async with asyncio.timeout(START_WINDOW_S):
                while not future.done():
                    await asyncio.wait((future,), timeout=POLL_S if self._known_for_s else None)
                    if await self._store.session_owner(session_id) is not None:
                        return True
        except TimeoutError:
            return False
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(session_id) is waiting:
                del self._waiting[session_id]
        return True
