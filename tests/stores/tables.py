"""The stores under test, and calls to put into them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.stores.redis_check import check_table

from autellix_backend.core.policies import make_policy
from autellix_backend.stores.base import CallEnd, CallStart, ProgramStore, ProgramView
from autellix_backend.stores.fallback import FallbackStore
from autellix_backend.stores.memory import MemoryStore
from autellix_backend.stores.redis import RedisStore
from autellix_backend.stores.redis_scripts import RedisScripts
from autellix_backend.stores.table_clock import TableClock

IDLE_S = 100.0
SESSION_TTL_S = 30.0
LEASE_S = 20.0
TIMEOUT_S = 30.0
PAGE_PROGRAMS = 200
MAX_ANSWER_IDS = 8

_numbers = itertools.count()


class TestClock(TableClock):
    """The clock that the tests hold is the table's, too."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)

    def measured(self, table_s: float, sent_s: float, received_s: float) -> None:
        """Believe no other."""


class Table:
    """A table of one kind, and the stores that a test opens on it."""

    def __init__(self, kind: str, url: str | None = None) -> None:
        self._kind = kind
        self._url = url
        self._prefix = f"test-{next(_numbers)}"
        self._opened: list[ProgramStore] = []

    async def renew(self) -> None:
        """Have an empty table from here on."""
        await self.close()
        self._prefix = f"test-{next(_numbers)}"

    async def open(self, policy: str = "plas", **options: Any) -> Any:
        """Open a store; one in Redis is another gateway's on the same table."""
        store = self._make(policy, **options)
        await store.open()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        """Close all stores."""
        while self._opened:
            await self._opened.pop().close()

    def _make(self, policy: str, **options: Any) -> ProgramStore:
        rule = make_policy(policy)
        memory = MemoryStore(
            rule, program_idle_s=IDLE_S, session_ttl_s=SESSION_TTL_S, max_answer_ids=MAX_ANSWER_IDS
        )
        if self._kind == "memory":
            return memory
        shared = self._shared(policy, **options)
        if self._kind == "redis":
            return shared
        return FallbackStore(shared, memory, on_fallback=options.get("on_fallback", lambda: None))

    def _shared(
        self,
        policy: str,
        *,
        url: str | None = None,
        timeout_s: float = TIMEOUT_S,
        clock: TableClock | None = None,
        on_fallback: Callable[[], None] | None = None,
    ) -> RedisStore:
        return RedisStore(
            make_policy(policy),
            RedisScripts(url or self._url or "", key_prefix=self._prefix, timeout_s=timeout_s),
            program_idle_s=IDLE_S,
            session_ttl_s=SESSION_TTL_S,
            lease_s=LEASE_S,
            clock=clock or TestClock(),
            max_answer_ids=MAX_ANSWER_IDS,
        )


def check(store: Any) -> None:
    """Assert the invariants of a store; blocks while it reads Redis."""
    if isinstance(store, FallbackStore):
        store._memory.check()
        if store.failure() is None:
            check(store._shared)
    elif isinstance(store, RedisStore):
        check_table(store._scripts.url, store._scripts.tag)
    else:
        store.check()


async def all_programs(store: ProgramStore, limit: int | None = None, **options: Any) -> list[ProgramView]:
    """Return the programs of all pages, or the first `limit`."""
    programs: list[ProgramView] = []
    cursor: str | None = None
    while limit is None or len(programs) < limit:
        most = PAGE_PROGRAMS if limit is None else min(PAGE_PROGRAMS, limit - len(programs))
        page = await store.page(after=cursor, limit=most, **options)
        programs += page.programs
        cursor = page.cursor
        if cursor is None:
            break
    return programs


def start(key: str, program: str = "p", session: str | None = None, **fields: Any) -> CallStart:
    return CallStart(**{"key": key, "call_id": key, "program_id": program, "session_id": session, **fields})


def end(key: str, *services_s: float, program: str = "p", **fields: Any) -> CallEnd:
    defaults: dict[str, Any] = {
        "outcome": "ok",
        "wait_s": 2.0,
        "table_wait_s": 1.0,
        "inherited_service_s": 0.0,
        "is_estimated": False,
    }
    return CallEnd(key=key, program_id=program, services_s=services_s, **{**defaults, **fields})
