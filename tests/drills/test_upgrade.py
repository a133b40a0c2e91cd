"""Behind a proxy, gateways and engines are replaced one by one, also by another release: no call fails."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from redis import Redis
from tests.deploy.chart import DEPLOY
from tests.drills import checks
from tests.drills.cluster import FOLDER, TAG, Cluster, running_cluster
from tests.drills.control import Operator, operating, until
from tests.drills.drill import WARM_CALLS
from tests.drills.load import Fate, Load, working
from tests.drills.processes import Server, Spec
from tests.drills.test_live_models import SECRET, engine_spec
from tests.ports import free_port

from autellix_lab.demo.model import DEMO_MODEL_NAME

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OLD = os.environ.get("AUTELLIX_OLD_CHECKOUT")
"""The checkout of 0.2 (commit 00a5f971) with an environment in `.venv`."""
needs_0_2 = pytest.mark.skipif(
    OLD is None, reason="set AUTELLIX_OLD_CHECKOUT to a checkout of 0.2 with an environment"
)
OLD_SETTINGS = {"AUTELLIX_SCHEDULER_SERVICE": "tokens"}
OLD_KEYS = (f"{TAG}:ended", f"{TAG}:closed")
"""Keys that only gateways of 0.2 use."""
IN = "max_fails=1 fail_timeout=2s"
CALLS = 60
"""Answered calls after each replacement."""


@dataclass(frozen=True, slots=True)
class Edge:
    """nginx with the shipped configuration before the gateways."""

    server: Server
    folder: Path
    gateways: list[Server]

    def write(self, *, without: Server | None = None) -> None:
        """Write the list of gateways; no call goes to the one that is left out."""
        lines = [
            f"server 127.0.0.1:{each.spec.port} {'down' if each is without else IN};\n"
            for each in self.gateways
        ]
        (self.folder / "gateways.conf").write_text("".join(lines))

    def leave_out(self, gateway: Server | None) -> None:
        """Have nginx read the list again."""
        self.write(without=gateway)
        subprocess.run([*self.server.spec.command, "-s", "reload"], check=True)


@pytest.fixture
def cluster(redis_program: str, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(redis_program, tmp_path) as cluster:
        yield cluster


@pytest.fixture
def edge(cluster: Cluster, tmp_path: Path) -> Iterator[Edge]:
    with running_edge(cluster, tmp_path) as found:
        yield found


@contextmanager
def running_edge(cluster: Cluster, tmp_path: Path) -> Iterator[Edge]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    folder, port = tmp_path / "nginx", free_port()
    folder.mkdir()
    shutil.copy(DEPLOY / "proxy" / "nginx.conf", folder)
    (folder / "listen.conf").write_text(f"listen 127.0.0.1:{port};\n")
    spec = Spec(
        name="nginx",
        command=["nginx", "-p", f"{folder}/", "-c", "nginx.conf", "-g", f"pid {folder}/pid; daemon off;"],
        port=port,
        health_path="/readyz",
        log=folder / "log",
        environment={},
        start_s=60.0,
    )
    found = Edge(Server(spec), folder, cluster.gateways)
    found.write()
    try:
        found.server.start()
        yield found
    finally:
        found.server.kill()


def of_0_2(spec: Spec) -> Spec:
    """Return how the same server of 0.2 is started: a program of the drills, or a module."""
    assert OLD is not None
    program = spec.command[1]
    if Path(program).is_absolute():
        program = str(Path(OLD) / Path(program).relative_to(FOLDER.parents[1]))
    command = [str(Path(OLD) / ".venv" / "bin" / "python"), program, *spec.command[2:]]
    return replace(spec, command=command, environment={**spec.environment, **OLD_SETTINGS})


async def restart(server: Server, spec: Spec) -> None:
    """Stop a server by SIGTERM, and start another in its place."""
    assert await asyncio.to_thread(server.stop) == 0
    server.spec = spec
    await asyncio.to_thread(server.start)


async def replace_engine(operator: Operator, cluster: Cluster, number: int, spec: Spec) -> None:
    """Drain an engine at all gateways, replace it, and undrain it."""
    name = f"remote-{number}"
    for gateway in cluster.gateways:
        await operator.tell(gateway, name, "drain")

    async def is_idle() -> bool:
        seen = [await operator.engines(gateway) for gateway in cluster.gateways]
        return not any(one["open_calls"] for all_of in seen for one in all_of if one["name"] == name)

    await until("the engine has no call left", is_idle)
    await restart(cluster.engines[number], spec)
    for gateway in cluster.gateways:
        await operator.tell(gateway, name, "undrain")
        await until("the engine is back", operator.sees, gateway, name, "up")


async def check_all_is_kept(cluster: Cluster, load: Load) -> None:
    await load.rest()
    fates = load.ledger.fates
    assert set(fates) == {Fate.ANSWERED}, load.ledger.reasons
    shares = await checks.service_is_kept(cluster, load)
    load.leave()
    counts = fates[Fate.ANSWERED], load.visits, sorted(shares.values())
    logger.info("%d answered, %d visitors; service by the receipts': %s", *counts)


async def check_nothing_is_left(cluster: Cluster) -> None:
    async def is_empty() -> bool:
        return not cluster.keys_left()

    await until("the table is empty", is_empty, told=cluster.keys_left)
    cluster.check_table()


async def test_gateways_are_restarted_in_turn_and_no_call_fails(cluster: Cluster, edge: Edge) -> None:
    """Each by SIGTERM alone: the proxy learns it from connections that fail, before a call is sent."""

    async with operating() as operator, working([edge.server], name="restart", model="m") as load:
        await load.more(WARM_CALLS)
        for gateway in cluster.gateways:
            await restart(gateway, gateway.spec)
            await has_calls(operator, gateway)
            await load.more(CALLS)
        await check_all_is_kept(cluster, load)
    await check_nothing_is_left(cluster)


async def has_calls(operator: Operator, gateway: Server) -> None:
    """Wait until a gateway that has just started answers calls."""

    async def has_some() -> bool:
        metrics = await operator.metrics(gateway)
        return any(value for name, value in metrics.items() if name.startswith("autellix_calls_total"))

    await until("the gateway has calls", has_some)


@needs_0_2
async def test_an_upgrade_from_0_2_and_the_way_back_lose_nothing(cluster: Cluster, edge: Edge) -> None:
    """Gateways first, then engines, one at a time; on the way back engines first."""

    gateways, engines = ([each.spec for each in some] for some in (cluster.gateways, cluster.engines))
    await asyncio.to_thread(install_0_2, cluster, *cluster.engines)
    async with operating() as operator, working([edge.server], name="upgrade", model="m") as load:
        await load.more(WARM_CALLS)
        for gateway, spec in zip(cluster.gateways, gateways, strict=True):
            # One of 0.2 answers 503 while it ends.
            edge.leave_out(gateway)
            await load.more(CALLS)
            await restart(gateway, spec)
            edge.leave_out(None)
            await has_calls(operator, gateway)
            await load.more(CALLS)
        for number, spec in enumerate(engines):
            await replace_engine(operator, cluster, number, spec)
            await load.more(CALLS)
        for number, spec in enumerate(engines):
            await replace_engine(operator, cluster, number, of_0_2(spec))
            await load.more(CALLS)
        for gateway, spec in zip(cluster.gateways, gateways, strict=True):
            await restart(gateway, of_0_2(spec))
            await has_calls(operator, gateway)
            await load.more(CALLS)
        await check_all_is_kept(cluster, load)
    with Redis.from_url(cluster.redis.url) as client:
        client.delete(*OLD_KEYS)
    await check_nothing_is_left(cluster)


def install_0_2(cluster: Cluster, *engines: Server) -> None:
    """Replace the gateways and these engines by those of 0.2, before the first call."""
    for server in (*cluster.gateways, *engines):
        server.stop()
        server.spec = of_0_2(server.spec)
    cluster.redis.stop()
    cluster.redis.start()
    for server in (*engines, *cluster.gateways):
        server.start()


@needs_0_2
@pytest.mark.vllm
async def test_real_engines_and_gateways_are_upgraded_from_0_2_one_at_a_time(
    redis_program: str, demo_model: Path, tmp_path: Path
) -> None:
    """No call fails, and gateways have the reports of the engines of their release."""

    model = tmp_path / "model"
    model.symlink_to(demo_model)
    specs = [engine_spec(f"vllm-{number}", model, [DEMO_MODEL_NAME]) for number in range(2)]
    with (
        running_cluster(redis_program, tmp_path, [of_0_2(spec) for spec in specs], SECRET) as cluster,
        running_edge(cluster, tmp_path) as edge,
    ):
        gateways = [gateway.spec for gateway in cluster.gateways]
        await asyncio.to_thread(install_0_2, cluster)
        async with (
            operating() as operator,
            working([edge.server], name="real", model=DEMO_MODEL_NAME) as load,
        ):
            for gateway, spec in zip(cluster.gateways, gateways, strict=True):
                await until("reports of 0.2 arrive", has_reports, operator, gateway, [True, True])
                edge.leave_out(gateway)
                await load.more(CALLS)
                await restart(gateway, spec)
                edge.leave_out(None)
                await until("none of 0.2 is understood", has_reports, operator, gateway, [False, False])
                await has_calls(operator, gateway)
                await load.more(CALLS)
            for number, spec in enumerate(specs):
                await replace_engine(operator, cluster, number, spec)
                expected = [True, number == 1]
                for gateway in cluster.gateways:
                    await until("reports arrive", has_reports, operator, gateway, expected)
                await load.more(CALLS)
            await check_all_is_kept(cluster, load)


async def has_reports(operator: Operator, gateway: Server, expected: list[bool]) -> bool:
    """Return whether a gateway has the reports of just these engines."""
    return [engine["reporting"] == "up" for engine in await operator.engines(gateway)] == expected
