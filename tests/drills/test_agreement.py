"""Two gateways behind nginx, one Redis: page, `ps` and metrics show what the engines' own numbers say.

Once calls neither come nor go, all agree, after the engines' next snapshots. While they do, what is shown was
true within the last seconds. `pytest --log-cli-level=INFO` shows after how long they agree, and how far off.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.drills.cluster import FOLDER, START_S, Cluster, running_cluster
from tests.drills.control import Operator, operating, until
from tests.drills.processes import Server, Spec
from tests.drills.queueing_engine import RUNNING, WAITING
from tests.ports import free_port

from autellix_backend.engines.factory import REPORT_PORT_OFFSET
from autellix_wire.headers import PROGRAM_ID
from autellix_wire.paths import API_PREFIX, PROGRAMS_PATH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENGINES, SLOTS = 2, 4
FEW, MANY = 12, 60
"""Programs: all of an engine's calls fit into each snapshot, or into every fourth only."""
TOKEN_DELAY_S = 0.02
CHURN_S = 20.0
CHURN_TOKENS = 75
LOOK_S = 0.2
WINDOW_S = 2.0
PATIENT_WINDOW_S = 20.0
"""On a busy machine, messages are late."""
CHAT = "/v1/chat/completions"
SECRET = {"AUTELLIX_ENGINE_REPORT_SECRET": "a secret that is thirty-two long"}
STATES = {"in_engine": "running", "waiting_for_slot": "waiting"}

logger = logging.getLogger(__name__)


def make_engine(number: int, folder: Path) -> Spec:
    port = free_port(REPORT_PORT_OFFSET)
    return Spec(
        name=f"engine-{number}",
        command=[
            *(sys.executable, str(FOLDER / "queueing_engine.py"), "--port", str(port)),
            *("--slots", str(SLOTS), "--token-delay-s", str(TOKEN_DELAY_S)),
        ],
        port=port,
        health_path="/health",
        log=folder / f"engine-{number}.log",
        environment=SECRET,
        start_s=START_S,
    )


@pytest.fixture
def cluster(redis_program: str, tmp_path: Path) -> Iterator[Cluster]:
    engines = [make_engine(number, tmp_path) for number in range(ENGINES)]
    with running_cluster(redis_program, tmp_path, engines, SECRET) as cluster:
        yield cluster


@pytest.fixture
def proxy_url(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    monkeypatch.syspath_prepend(str(FOLDER.parents[1] / "benchmarks"))
    import redteam_proxy

    folder = tmp_path / "nginx"
    folder.mkdir()
    with redteam_proxy.running_proxy("nginx", *_urls(cluster, folder)) as url:
        yield url


def _urls(cluster: Cluster, folder: Path) -> tuple[Any, ...]:
    first, second = (gateway.url for gateway in cluster.gateways)
    return first, folder, second


@dataclass(slots=True)
class Clients:
    """Programs with one open call each, through the proxy."""

    url: str
    client: aiohttp.ClientSession
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def come(self, count: int) -> None:
        """Begin further programs, whose calls do not end."""
        for _ in range(count):
            program = f"p{next(self.numbers)}"
            self.tasks[program] = asyncio.create_task(self._call(program, None))

    async def leave(self, count: int) -> None:
        """Disconnect the programs that came first."""
        for program in list(self.tasks)[: max(0, count)]:
            task = self.tasks.pop(program)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def churn(self, program: str, end: asyncio.Event) -> int:
        """Make one call after the other; return their number."""
        calls = 0
        while not end.is_set():
            await self._call(program, CHURN_TOKENS)
            calls += 1
        return calls

    async def _call(self, program: str, tokens: int | None) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        limit = {} if tokens is None else {"max_tokens": tokens}
        headers = {PROGRAM_ID: program}
        async with self.client.post(self.url + CHAT, json={**body, **limit}, headers=headers) as response:
            assert response.status == 200, await response.text()
            while await response.content.readany():
                pass


async def read_engine(operator: Operator, engine: Server) -> tuple[int, int]:
    """Return an engine's own numbers of running and waiting calls."""
    async with operator.client.get(engine.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    totals = [
        sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))
        for name in (RUNNING, WAITING)
    ]
    return int(totals[0]), int(totals[1])


async def read_gateway(operator: Operator, gateway: Server) -> dict[str, int]:
    """Return what a gateway shows, each number by its source and what it says it counts."""

    async def get(path: str) -> dict[str, Any]:
        async with operator.client.get(gateway.url + path) as response:
            found: dict[str, Any] = await response.json()
            return found

    page, table, metrics = await asyncio.gather(
        get(API_PREFIX + "/overview"), get(PROGRAMS_PATH + "?limit=1000"), operator.metrics(gateway)
    )
    shown = {f"page {what}": page["now"][what] for what in ("running", "waiting")}
    states = {each["state"]: each["programs"] for each in page["now"]["states"]}
    rows = Counter(row["state"] for row in table["programs"])
    for state, what in STATES.items():
        shown[f"page programs {what}"] = states[state]
        shown[f"ps {what}"] = rows[state]
    shown["page elsewhere"], shown["ps elsewhere"] = states["at_another_gateway"], rows["at_another_gateway"]
    for what in STATES.values():
        shown[f"metrics {what}"] = int(
            sum(metrics.get(f"autellix_engine_calls remote-{at} {what}", 0) for at in range(ENGINES))
        )
    return shown


def expected_of(own: Mapping[str, int], source: str) -> int:
    """Return the engines' own number for what a source shows."""
    return own[source.rpartition(" ")[2]]


async def read_own(operator: Operator, cluster: Cluster) -> dict[str, int]:
    """Return the engines' own numbers, summed; no call is elsewhere once engines show all."""
    numbers = await asyncio.gather(*(read_engine(operator, engine) for engine in cluster.engines))
    running, waiting = (sum(column) for column in zip(*numbers, strict=True))
    return {"running": running, "waiting": waiting, "elsewhere": 0}


@asynccontextmanager
async def clients_of(url: str) -> AsyncIterator[Clients]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as client:
        clients = Clients(url, client)
        try:
            yield clients
        finally:
            await clients.leave(len(clients.tasks))


async def agree(operator: Operator, cluster: Cluster, calls: int) -> float:
    """Wait until the engines have so many calls, and then until all show them; return how long (s)."""
    missing: dict[str, object] = {}

    async def has_calls() -> bool:
        own = await read_own(operator, cluster)
        return own["running"] + own["waiting"] == calls

    async def all_agree() -> bool:
        own = await read_own(operator, cluster)
        shown = await asyncio.gather(*(read_gateway(operator, gateway) for gateway in cluster.gateways))
        missing.clear()
        for gateway, numbers in zip(cluster.gateways, shown, strict=True):
            for source, number in numbers.items():
                if number != expected_of(own, source):
                    missing[f"{gateway.name} {source}"] = (number, expected_of(own, source))
        return not missing

    await until(f"{calls} calls", has_calls)
    begun_s = time.monotonic()
    await until("the numbers agree", all_agree, told=lambda: missing)
    return time.monotonic() - begun_s


@pytest.mark.parametrize("programs", [FEW, MANY])
async def test_gateways_show_what_the_engines_have(cluster: Cluster, proxy_url: str, programs: int) -> None:
    """Also what other gateways sent, what waits, and what has left."""
    async with operating() as operator, clients_of(proxy_url) as clients:
        waits = []
        for count in (programs, programs * 3 // 2, programs // 2, 0):
            clients.come(max(0, count - len(clients.tasks)))
            await clients.leave(len(clients.tasks) - count)
            waits.append(await agree(operator, cluster, count))
        logger.info("%d programs: agreed after %s s", programs, [round(each, 2) for each in waits])


@pytest.mark.parametrize("programs", [FEW, MANY])
async def test_what_is_shown_under_load_was_true_lately(
    cluster: Cluster, proxy_url: str, programs: int
) -> None:
    """While calls come and go all the time."""
    history: list[tuple[float, dict[str, int]]] = []
    readings: list[tuple[float, float, str, int]] = []
    end = asyncio.Event()

    async with operating() as operator, clients_of(proxy_url) as clients:

        async def follow_engines() -> None:
            while not end.is_set():
                history.append((time.monotonic(), await read_own(operator, cluster)))
                await asyncio.sleep(LOOK_S / 4)

        async def follow(gateway: Server) -> None:
            await asyncio.sleep(WINDOW_S)
            while not end.is_set():
                begun_s = time.monotonic()
                shown = await read_gateway(operator, gateway)
                readings.extend((begun_s, time.monotonic(), *each) for each in shown.items())
                await asyncio.sleep(LOOK_S)

        async with asyncio.TaskGroup() as group:
            group.create_task(follow_engines())
            for gateway in cluster.gateways:
                group.create_task(follow(gateway))
            callers = [group.create_task(clients.churn(f"q{at}", end)) for at in range(programs)]
            await asyncio.sleep(CHURN_S)
            end.set()
        calls = sum(caller.result() for caller in callers)

    assert calls > programs
    found: dict[str, Counter[int]] = {}
    for begun_s, ended_s, source, number in readings:
        distance = partial(_distance, history, source=source, number=number, until_s=ended_s)
        found.setdefault(source, Counter())[distance(begun_s - WINDOW_S)] += 1
        if not source.endswith("elsewhere"):
            # Some calls come and go between two snapshots, and others' are known by those alone.
            assert distance(begun_s - PATIENT_WINDOW_S) <= SLOTS, (source, number)
    text = "%d programs, %d calls: readings by their distance from what was true in the last %g s: %s"
    logger.info(text, programs, calls, WINDOW_S, found)


def _distance(
    history: list[tuple[float, dict[str, int]]], since_s: float, *, until_s: float, source: str, number: int
) -> int:
    """Return how far a number is from what the engines had between two times."""
    seen = [expected_of(own, source) for at_s, own in history if since_s <= at_s <= until_s]
    return max(min(seen) - number, number - max(seen), 0)
