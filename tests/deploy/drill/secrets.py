"""Wrong and missing report secrets: both sides say so in one line, and calls go on, charged by tokens."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from tests.deploy.drill.cluster import START_S, Cluster
from tests.deploy.drill.contract import chat, client, get, reporting, until
from tests.deploy.drill.pods import Part, Pod

SECRET = "AUTELLIX_ENGINE_REPORT_SECRET"
PATIENCE_S = 60.0
SHOWN = 160
"""Characters of a line in the table."""


async def change_secrets(cluster: Cluster) -> None:
    """Give a gateway a wrong secret and none, and an engine none."""
    node = cluster.node
    gateway, engine = cluster.last(Part.GATEWAY), cluster.last(Part.ENGINE)
    await _mislead(cluster, "wrong", "another secret than theirs", "refused", "refuses our secret")
    await _mislead(cluster, "missing", None, "locked", "wants a secret: engine.report_secret is not set here")
    log = node.log(cluster.first(Part.ENGINE).name)
    _find_line(cluster, "wrong secret: the engine says so", log, "with another engine.report_secret")
    _find_line(cluster, "missing secret: the engine says so", log, "a gateway without engine.report_secret")
    await asyncio.to_thread(node.replace, gateway)
    what = "no secret at an engine"
    await asyncio.to_thread(node.replace, with_secret(engine, None))
    await asyncio.to_thread(node.await_ready, [gateway.name, engine.name], START_S)
    await _expect(cluster, f"{what}: the gateway is refused", gateway, "refused")
    line = "engine.report_secret is another one there, or not set"
    _find_line(cluster, f"{what}: the gateway says so", node.log(gateway.name), line)
    line = f"reports to gateways are off: {SECRET} is not set"
    _find_line(cluster, f"{what}: the engine says so", node.log(engine.name), line)
    async with client() as session:
        readiness = await get(session, node.playing(gateway.name), "/readyz")
    cluster.table.note(f"{what}: readyz is degraded", readiness["status"] == "degraded", readiness)


async def _mislead(cluster: Cluster, what: str, secret: str | None, state: str, line: str) -> None:
    gateway = cluster.last(Part.GATEWAY)
    await asyncio.to_thread(cluster.node.replace, with_secret(gateway, secret))
    await asyncio.to_thread(cluster.node.await_ready, [gateway.name], START_S)
    await _expect(cluster, f"{what} secret at a gateway: its engines are {state}", gateway, state)
    async with client() as session:
        address = cluster.node.playing(gateway.name)
        receipt = (await chat(session, address, f"{what}-secret", 4))["autellix"]
    cluster.table.note(f"{what} secret at a gateway: it charges by tokens", receipt["estimated"] is True)
    _find_line(cluster, f"{what} secret at a gateway: it says so", cluster.node.log(gateway.name), line)


def with_secret(pod: Pod, secret: str | None) -> Pod:
    """Return a pod with another report secret, or without one."""
    environment = {name: value for name, value in pod.main.environment.items() if name != SECRET}
    if secret is not None:
        environment[SECRET] = secret
    return replace(pod, main=replace(pod.main, environment=environment))


async def _expect(cluster: Cluster, what: str, gateway: Pod, state: str) -> None:
    """Note whether a gateway comes to say this of its last engine's reports."""
    address = cluster.node.playing(gateway.name)
    async with client() as session:

        async def is_so() -> bool:
            return list((await reporting(session, address)).values())[-1] == state

        with contextlib.suppress(AssertionError):
            await until(what, is_so, PATIENCE_S)
        seen = await reporting(session, address)
        cluster.table.note(what, await is_so(), seen)


def _find_line(cluster: Cluster, what: str, log: str, text: str) -> None:
    lines = [line for line in log.splitlines() if text in line]
    seen = lines[0][:SHOWN] if lines else f"no line with {text!r}"
    cluster.table.note(what, bool(lines), seen)
