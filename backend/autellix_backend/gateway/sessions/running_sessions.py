"""The running sessions and their owners, as far as this gateway can tell.

A client starts its session in parallel to its first calls, and the store may have lost sessions that run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from autellix_backend.stores.base import ProgramStore

HEARTBEAT_S = 10.0
"""The heartbeat period that clients are asked to keep: rare against their calls."""
LOST_HEARTBEATS = 3
"""Heartbeats that a client may miss before its session ends."""
SESSION_TTL_S = LOST_HEARTBEATS * HEARTBEAT_S
START_WINDOW_S = 2.0
"""How long before or after its session's start a call may lack the token."""
POLL_S = 0.05
"""How often a call that waits for its session asks whether that has started, here or at another gateway."""


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
        self._grace_s = grace_s
        # A shared table outlives the gateway, and knows its sessions.
        self._grace_end_s = clock() + (0.0 if is_shared else grace_s)
        self._ended: dict[str, None] = {}
        self._starts_s: dict[str, float] = {}

    def note_start(self, session_id: str) -> None:
        """Note that a session has started."""
        now = self._clock()
        self._ended.pop(session_id, None)
        self._starts_s = {name: at for name, at in self._starts_s.items() if now - at < START_WINDOW_S}
        self._starts_s[session_id] = now

    def note_end(self, session_id: str) -> None:
        """Note that a session was ended: its token ends with it."""
        self._starts_s.pop(session_id, None)
        if self._clock() < self._grace_end_s:
            self._ended[session_id] = None

    def may_be_lost(self, session_id: str) -> bool:
        """Return whether the store may have lost a session that runs, or cannot tell."""
        if self._store.failure() is not None:
            # The shared table may come back without the session.
            self._grace_end_s = self._clock() + self._grace_s
            return True
        return self._clock() < self._grace_end_s and session_id not in self._ended

    async def owner(self, session_id: str) -> str | None:
        """Return a running session's owner, None if it is not known to run."""
        return await self._store.session_owner(session_id)

    async def starts_in_time(self, session_id: str) -> bool:
        """Wait a moment for a session's start; return whether it starts, or started a moment ago."""
        start_s = self._starts_s.get(session_id)
        if start_s is not None and self._clock() - start_s < START_WINDOW_S:
            return True
        # A session that runs already started too long ago.
        if await self.owner(session_id) is not None:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_WINDOW_S):
                while await self.owner(session_id) is None:  # noqa: ASYNC110 - the store tells when asked
                    # It may start at another gateway, of which only the store tells.
                    await asyncio.sleep(POLL_S)
                return True
        return False
