"""Gateways, engines and one Redis, all processes of their own, with a connection to Redis that can be cut."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis
from tests.drills.processes import Server, Spec
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.stores.redis_check import SINGLE_KEYS, check_table
from tests.stores.relay import Relay, relaying

from autellix_backend.core.config import SchedulerConfig

FOLDER = Path(__file__).parent
GATEWAYS = 2
ENGINES = 3
TOKEN_DELAY_S = 0.015
KEY_PREFIX = "drills"
TAG = "{" + KEY_PREFIX + "}"
SCHEDULER = SchedulerConfig(policy="plas", service="tokens")
START_S = 120.0
# Short waits where a drill would only wait longer, and long ones where a busy machine must not matter.
SETTINGS = {
    "AUTELLIX_STORE_KEY_PREFIX": KEY_PREFIX,
    "AUTELLIX_SCHEDULER_POLICY": SCHEDULER.policy,
    "AUTELLIX_GATEWAY_RECOVERY_WAIT_S": "25",
    "AUTELLIX_GATEWAY_TOKEN_SECRET": "the drills' gateways share one",
    "AUTELLIX_ENGINE_KIND": "vllm",
}


@dataclass(slots=True)
class Cluster:
    """The processes and files of a drill."""

    redis: RedisServer
    line: Line
    """The second gateway's route to Redis."""
    engines: list[Server]
    gateways: list[Server]
    ledgers: list[Path]
    """The fake engines' ledgers of calls; none for real engines."""
    idle: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Tasks and sockets of each gateway before it had any work."""
    is_sound: bool = True
    """Whether it is as at its start: a drill makes it unsound until its checks have passed."""

    def start(self) -> None:
        """Start everything."""
        self.redis.start()
        for engine in self.engines:
            engine.launch()
        for engine in self.engines:
            engine.await_ready()
        for gateway in self.gateways:
            gateway.launch()
        for gateway in self.gateways:
            gateway.await_ready()
            self.idle[gateway.name] = gateway.tasks(), gateway.sockets()

    def kill(self) -> None:
        """End everything."""
        for server in (*self.gateways, *self.engines):
            server.kill()
        self.redis.stop()

    def service_s(self, program: str) -> float:
        """Return a program's attained service as the shared table has it."""
        with Redis.from_url(self.redis.url, decode_responses=True) as client:
            return float(str(client.hget(f"{TAG}:p:{program}", "service_s") or 0.0))

    def keys_left(self) -> list[str]:
        """Return the keys of the shared table that belong to programs, calls or sessions."""
        with Redis.from_url(self.redis.url, decode_responses=True) as client:
            names = [str(key).removeprefix(f"{TAG}:") for key in client.scan_iter(match=f"{TAG}:*")]
            held = [
                name
                for name in ("programs", "active", "idle", "sessions", "gone")
                if client.exists(f"{TAG}:{name}")
            ]
        return [name for name in names if name not in SINGLE_KEYS] + held

    def members(self) -> int:
        """Return how many gateways have a lease."""
        with Redis.from_url(self.redis.url) as client:
            return int(client.zcard(f"{TAG}:gateways"))

    def check_table(self) -> None:
        """Assert the invariants of the shared table."""
        check_table(self.redis.url, TAG)

    def engine_accounts(self) -> dict[str, float]:
        """Return the service (s) that the engines did for each program, in calls that they completed."""
        totals: dict[str, float] = {}
        for path in self.ledgers:
            for line in path.read_text(encoding="ascii").splitlines():
                program, prompt_tokens, output_tokens = json.loads(line)
                service_s = SCHEDULER.nominal_service_s(prompt_tokens, output_tokens)
                totals[program] = totals.get(program, 0.0) + service_s
        return totals


class Line:
    """A relay before Redis, in a thread of its own."""

    def __init__(self, server_port: int) -> None:
        self.url = ""
        self._server_port = server_port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._relay: Relay | None = None
        self._end: asyncio.Event | None = None

    def cut(self) -> None:
        """Cut the connection: open ones end, and no new one succeeds."""
        self._call("cut")

    def deafen(self) -> None:
        """Drop every answer, but no request."""
        self._call("deafen")

    def mend(self) -> None:
        """Work again."""
        self._call("mend")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Relay meanwhile."""
        is_ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(is_ready)), name="drill-line")
        thread.start()
        assert is_ready.wait(START_S)
        try:
            yield
        finally:
            assert self._loop is not None
            assert self._end is not None
            self._loop.call_soon_threadsafe(self._end.set)
            thread.join(START_S)

    async def _serve(self, is_ready: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with relaying(self._server_port) as self._relay:
            self.url = self._relay.url
            is_ready.set()
            await self._end.wait()

    def _call(self, action: str) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(getattr(self._relay, action))


class SharedCluster:
    """A cluster for several drills, replaced where one of them left it unsound."""

    def __init__(self, run: Callable[[], AbstractContextManager[Cluster]]) -> None:
        self._run = run
        self._stack = ExitStack()
        self._cluster: Cluster | None = None

    def sound(self) -> Cluster:
        """Return a cluster that no failed drill has touched."""
        if self._cluster is None or not self._cluster.is_sound:
            self.close()
            self._cluster = self._stack.enter_context(self._run())
        return self._cluster

    def close(self) -> None:
        """End the cluster, if there is one."""
        self._cluster = None
        self._stack.close()


@contextmanager
def running_cluster(
    redis_program: str,
    folder: Path,
    engines: Sequence[Spec] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """Run two gateways before three engines.

    Args:
        redis_program: The Redis server.
        folder: Where logs and ledgers go.
        engines: The engines; fake ones if there are none.
        environment: Settings of the gateways beside the drills'.
    """
    redis = RedisServer(redis_program, folder)
    line = Line(redis.port)
    ledgers = [] if engines else [folder / f"engine-{at}.ledger" for at in range(ENGINES)]
    servers = [Server(spec) for spec in engines or map(_fake_engine, ledgers)]
    with line.working():
        stores = (redis.url, line.url)
        gateways = [
            Server(_gateway(at, store, servers, folder, environment or {})) for at, store in enumerate(stores)
        ]
        cluster = Cluster(redis, line, servers, gateways, ledgers)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()


def _fake_engine(ledger: Path) -> Spec:
    port = free_port()
    program = FOLDER / "engine_process.py"
    ledger.touch()
    command = [sys.executable, str(program), "--port", str(port), "--ledger", str(ledger)]
    return Spec(
        name=ledger.stem,
        command=[*command, "--token-delay-s", str(TOKEN_DELAY_S)],
        port=port,
        health_path="/health",
        log=ledger.with_suffix(".log"),
        environment={},
        start_s=START_S,
    )


def _gateway(
    number: int, store: str, engines: Sequence[Server], folder: Path, environment: Mapping[str, str]
) -> Spec:
    port = free_port()
    command = [
        sys.executable,
        str(FOLDER / "gateway_process.py"),
        "serve",
        "--port",
        str(port),
        "--store",
        store,
    ]
    for engine in engines:
        command += ["--engine", engine.url]
    return Spec(
        name=f"gateway-{number}",
        command=command,
        port=port,
        health_path="/readyz",
        log=folder / f"gateway-{number}.log",
        environment={**SETTINGS, "AUTELLIX_CACHE_DIR": str(folder / f"gateway-{number}"), **environment},
        start_s=START_S,
    )
