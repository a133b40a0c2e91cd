"""What a cluster goes through under load: killed containers and replaced pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from tests.deploy.drill.cluster import START_S, Cluster
from tests.deploy.drill.contract import chat, client, comes_true, get, reporting
from tests.deploy.drill.pods import Part, Pod, of_part
from tests.drills.load import Fate, Load, working

from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_wire.paths import PROGRAMS_PATH

CALLS = 40
DEFAULT_PORT = 8000
"""Where the commands look for a gateway."""
TOLERANCE = 0.05
SETTLE_S = 20.0
CLEAR = ("failed: in a stream: engine_unavailable", "failed: status 503: shutting_down")
"""Errors that a client understands: its stream was cut, or it should call another gateway."""


@asynccontextmanager
async def loaded(
    cluster: Cluster, name: str, *, has_service: bool = False, keeps_table: bool = True
) -> AsyncIterator[Load]:
    """Load the cluster; then check that nothing was lost, and that reports are back.

    Args:
        cluster: What is loaded.
        name: Of the scene.
        has_service: Whether clients reach ready gateways alone, as through a Service or a load balancer;
            else they call a dead one as well.
        keeps_table: Whether Redis lives, and so has all service at the end.
    """
    gateways: Any = cluster.backend.gateways

    def is_offered(gateway: Any) -> bool:
        return not has_service or cluster.node.is_ready(gateway.name)

    async with (
        client() as session,
        working(gateways, name=name, model=DEMO_MODEL_NAME, is_offered=is_offered) as load,
    ):
        await load.more(CALLS)
        yield load
        await cluster.is_well(session)
        await load.rest()
        fates, reasons = load.ledger.fates, dict(load.ledger.reasons)
        lost = fates[Fate.HUNG] + fates[Fate.UNCLEAR]
        unexpected = [why for why in reasons if why.startswith(Fate.FAILED.value) and why not in CLEAR]
        seen = f"{fates[Fate.ANSWERED]} answered; others: {reasons or 'none'}"
        cluster.table.note(
            f"{name}: every call is answered or refused clearly", not lost + len(unexpected), seen
        )
        if keeps_table:
            await _check_service(cluster, session, load, name)
        for gateway in cluster.backend.gateways:
            receipt = (await chat(session, gateway, f"{name}-after", 4))["autellix"]
            told = await reporting(session, gateway)
            holds = receipt["estimated"] is False and set(told.values()) == {"up"}
            cluster.table.note(f"{name}: reports are back at {gateway.name}", holds, told)
        load.leave()


async def _check_service(cluster: Cluster, session: aiohttp.ClientSession, load: Load, name: str) -> None:
    """Compare the service in the table with what the receipts say."""
    shares: dict[str, float] = {}

    async def agrees() -> bool:
        rows = (await get(session, cluster.backend.gateways[0], f"{PROGRAMS_PATH}?limit=1000"))["programs"]
        told = {row["program_id"]: row["total_service_s"] for row in rows}
        shares.update({each: told.get(each, 0.0) / load.ledger.service_s[each] for each in load.residents})
        return all(abs(share - 1) <= TOLERANCE for share in shares.values())

    holds = await comes_true(agrees, SETTLE_S)
    low, high = min(shares.values()), max(shares.values())
    cluster.table.note(
        f"{name}: the table has the service of the receipts", holds, f"{low:.3f} to {high:.3f} of it"
    )


async def make_calls(cluster: Cluster) -> None:
    """Call through each gateway: receipts have the engines' own numbers, and all answers are equal."""
    async with client() as session:
        answers = [
            await chat(session, gateway, f"calls-{number}", 8)
            for gateway in cluster.backend.gateways
            for number in range(2 * cluster.backend.engines)
        ]
    texts = {answer["choices"][0]["message"]["content"] for answer in answers}
    cluster.table.note("answers are equal", len(texts) == 1, len(answers))
    measured = [answer["autellix"]["estimated"] is False for answer in answers]
    cluster.table.note("receipts have the engines' own numbers", all(measured), sum(measured))


async def kill_engine(cluster: Cluster) -> None:
    """Kill an engine; the node starts it again in its pod."""
    await _kill(cluster, cluster.first(Part.ENGINE), "engine killed")


async def kill_gateway(cluster: Cluster) -> None:
    """Kill a gateway."""
    await _kill(cluster, cluster.first(Part.GATEWAY), "gateway killed")


async def kill_redis(cluster: Cluster) -> None:
    """Kill Redis, which keeps nothing."""
    await _kill(cluster, cluster.first(Part.REDIS), "Redis killed", keeps_table=False)


async def _kill(cluster: Cluster, victim: Pod, name: str, *, keeps_table: bool = True) -> None:
    async with loaded(cluster, name, keeps_table=keeps_table) as load:
        starts = cluster.node.starts(victim.name)
        await asyncio.to_thread(cluster.node.kill, victim.name)
        await load.more(CALLS // 2)
        await asyncio.to_thread(cluster.node.await_ready, [victim.name], START_S)
        cluster.table.note(
            f"{name}: it was started again", cluster.node.starts(victim.name) == starts + 1, victim.name
        )
        await load.more(CALLS // 2)


async def replace_pods(cluster: Cluster) -> None:
    """Replace a gateway, then an engine, as an upgrade does: no call may notice, and addresses change."""
    name = "pods replaced"
    async with loaded(cluster, name, has_service=True) as load:
        for pod in (cluster.last(Part.GATEWAY), cluster.last(Part.ENGINE)):
            if len(of_part(cluster.pods, pod.part)) < 2:
                continue
            took_s = await asyncio.to_thread(cluster.node.replace, pod)
            cluster.table.note(
                f"{name}: {pod.name} ended in its grace", True, f"{took_s:.1f} of {pod.grace_s:g} s"
            )
            await asyncio.to_thread(cluster.node.await_ready, [pod.name], START_S)
            await load.more(CALLS // 2)


async def use_commands(cluster: Cluster) -> None:
    """Run the operator's commands in a gateway's container, as the guide says."""
    gateway = cluster.first(Part.GATEWAY)
    port = gateway.probe.port
    url = () if port == DEFAULT_PORT else ("--url", f"http://127.0.0.1:{port}")
    commands: dict[str, tuple[str, ...]] = {
        "autellix engines": ("autellix", "engines", *url),
        "autellix ps": ("autellix", "ps", *url),
        "autellix config show": ("autellix", "config", "show"),
        "autellix config check": ("autellix", "config", "check"),
        "autellix engines drain": ("autellix", "engines", "drain", "remote-0", *url),
        "autellix engines undrain": ("autellix", "engines", "undrain", "remote-0", *url),
    }
    for what, command in commands.items():
        done = await asyncio.to_thread(cluster.node.execute, gateway.name, command)
        lines = (done.stdout or done.stderr).strip().splitlines()
        cluster.table.note(f"{what} inside a gateway's pod", done.returncode == 0, lines[-1] if lines else "")
