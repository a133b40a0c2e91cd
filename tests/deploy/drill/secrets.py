"""Wrong and missing report secrets: both sides say so in one line, and calls go on, charged by tokens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import aiohttp
from tests.deploy.drill.cluster import START_S, Cluster
from tests.deploy.drill.contract import chat, client, comes_true, get, reporting
from tests.deploy.drill.pods import Part, Pod

SECRET = "AUTELLIX_ENGINE_REPORT_SECRET"
PATIENCE_S = 300.0
"""An engine repeats a complaint at most once a minute."""
SHOWN = 160
"""Characters of a line in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFault:
    """A secret at a gateway that is none of the engines'."""

    what: str
    secret: str | None
    state: str
    """Of its engines' reports."""
    gateway_line: str
    engine_line: str


FAULTS = (
    SecretFault(
        what="wrong",
        secret="another secret than theirs",
        state="refused",
        gateway_line="refuses our secret",
        engine_line="with another engine.report_secret",
    ),
    SecretFault(
        what="missing",
        secret=None,
        state="refused",
        gateway_line="wants a secret: engine.report_secret is not set here",
        engine_line="a gateway without engine.report_secret",
    ),
)


async def change_secrets(cluster: Cluster) -> None:
    """Give a gateway a wrong secret and none, and an engine none."""
    async with client() as session:
        for fault in FAULTS:
            await _mislead(cluster, session, fault)
        await _take_from_engine(cluster, session)


async def _mislead(cluster: Cluster, session: aiohttp.ClientSession, fault: SecretFault) -> None:
    what, gateway = f"{fault.what} secret at a gateway", cluster.last(Part.GATEWAY)
    engine = cluster.first(Part.ENGINE)
    ends = _Ends(cluster, gateway, engine)
    await asyncio.to_thread(cluster.node.replace, with_secret(gateway, fault.secret))
    await asyncio.to_thread(cluster.node.await_ready, [gateway.name], START_S)
    await _expect(cluster, session, f"{what}: its engines are {fault.state}", gateway, fault.state)
    receipt = (await chat(session, cluster.node.playing(gateway.name), what.replace(" ", "-"), 4))["autellix"]
    cluster.table.note(f"{what}: it charges by tokens", receipt["estimated"] is True)
    await ends.expect_line(f"{what}: it says so", gateway, fault.gateway_line)
    await ends.expect_line(f"{what}: the engine says so", engine, fault.engine_line)


async def _take_from_engine(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    what, node = "no secret at an engine", cluster.node
    gateway, engine = cluster.last(Part.GATEWAY), cluster.last(Part.ENGINE)
    # Its own secret again.
    await asyncio.to_thread(node.replace, gateway)
    await asyncio.to_thread(node.await_ready, [gateway.name], START_S)
    await cluster.is_well(session)
    ends = _Ends(cluster, gateway, engine)
    await asyncio.to_thread(node.replace, with_secret(engine, None))
    await asyncio.to_thread(node.await_ready, [engine.name], START_S)
    await _expect(cluster, session, f"{what}: the gateway is refused", gateway, "refused")
    line = "engine.report_secret is another one there, or not set"
    await ends.expect_line(f"{what}: the gateway says so", gateway, line)
    line = f"reports to gateways are off: {SECRET} is not set"
    await ends.expect_line(f"{what}: the engine says so", engine, line)
    readiness = await get(session, node.playing(gateway.name), "/readyz")
    cluster.table.note(f"{what}: readyz is degraded", readiness["status"] == "degraded", readiness)


def with_secret(pod: Pod, secret: str | None) -> Pod:
    """Return a pod with another report secret, or without one."""
    environment = {name: value for name, value in pod.main.environment.items() if name != SECRET}
    if secret is not None:
        environment[SECRET] = secret
    return replace(pod, main=replace(pod.main, environment=environment))


async def _expect(
    cluster: Cluster, session: aiohttp.ClientSession, what: str, gateway: Pod, state: str
) -> None:
    """Note whether a gateway comes to say this of its last engine's reports."""
    address = cluster.node.playing(gateway.name)
    seen: dict[str, str] = {}

    async def is_so() -> bool:
        # Each attempt to connect again is another state for a moment.
        seen.update(await reporting(session, address))
        return list(seen.values())[-1] == state

    cluster.table.note(what, await comes_true(is_so, PATIENCE_S), seen)


class _Ends:
    """What the two ends of a link print from here on."""

    def __init__(self, cluster: Cluster, *pods: Pod) -> None:
        self._cluster = cluster
        self._sizes = {pod.name: cluster.node.log_size(pod.name) for pod in pods}

    async def expect_line(self, what: str, pod: Pod, text: str) -> None:
        """Note whether one of them comes to say this."""
        found: list[str] = []

        async def is_said() -> bool:
            log = self._cluster.node.log(pod.name, self._sizes[pod.name])
            found[:] = [line for line in log.splitlines() if text in line]
            return bool(found)

        holds = await comes_true(is_said, PATIENCE_S)
        seen = found[0][:SHOWN] if found else f"no line with {text!r}"
        self._cluster.table.note(what, holds, seen)
