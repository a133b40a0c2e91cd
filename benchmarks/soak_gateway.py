"""The soak's gateway: the real one in its own process, over a store that counts settlements."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop
from proxies import RunningEngine

from autellix_backend.cli.server import BACKLOG, GatewayServer, connection_limit
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.app import create_app
from autellix_backend.gateway.http.sessions import SESSION_TTL_S
from autellix_backend.settings import Settings
from autellix_backend.stores.base import CallEnd, CallStart, Inherited
from autellix_backend.stores.memory import MemoryStore

PAGE_BYTES = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of the gateway's process."""

    begun: int
    """Calls that entered the store."""
    settled: int
    settled_twice: int
    programs: int
    sessions: int
    active_calls: int
    tasks: int
    """Tasks of the event loop."""
    sockets: int
    """Open file descriptors that are sockets."""
    memory_bytes: int
    """Resident memory."""
    series: int = 0
    """Label series of all metrics, as they are scraped."""


class LedgerStore(MemoryStore):
    """A MemoryStore that counts every call's beginning and end."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            make_policy(settings.scheduler.policy),
            program_idle_s=settings.gateway.program_idle_s,
            session_ttl_s=SESSION_TTL_S,
        )
        self.begun = 0
        self.ended: Counter[str] = Counter()
        self._open: set[str] = set()

    async def begin(self, call: CallStart, now: float) -> Inherited:
        """Count a beginning."""
        inherited = await super().begin(call, now)
        self.begun += 1
        self._open.add(call.key)
        return inherited

    async def settle(self, end: CallEnd, now: float) -> None:
        """Count an end; a second one of the same call is counted apart."""
        self.ended["once" if end.key in self._open else "again"] += 1
        self._open.discard(end.key)
        await super().settle(end, now)


def serve(engine: RunningEngine, settings: Settings, requests: Connection) -> None:
    """Run the gateway in this process; report its port, then Stats for everything that arrives."""
    store = LedgerStore(settings)
    app = create_app(settings, engine, store=store)
    is_ready = asyncio.Event()
    server = GatewayServer(app, settings.gateway, connection_limit(), is_ready.set)

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await is_ready.wait()
            requests.send(listener.getsockname()[1])
            while True:
                try:
                    await asyncio.to_thread(requests.recv)
                except EOFError:
                    break
                requests.send(await _stats(store))
            server.should_exit = True
            app.state.closing.set()
            await serving

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def _stats(store: LedgerStore) -> Stats:
    gc.collect()
    counts = await store.counts()
    store.check()
    return Stats(
        begun=store.begun,
        settled=store.ended["once"],
        settled_twice=store.ended["again"],
        programs=counts.programs,
        sessions=counts.sessions,
        active_calls=counts.active_calls,
        tasks=len(asyncio.all_tasks()),
        sockets=_sockets(),
        memory_bytes=_memory_bytes(),
    )


def _sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except OSError:
            # The folder's own descriptor is gone by now.
            continue
    return count


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES
