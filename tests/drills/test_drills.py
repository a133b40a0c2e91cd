"""Gateways, engines and Redis die under load: no call is lost silently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.drills.cluster import Cluster, SharedCluster, running_cluster
from tests.drills.control import until
from tests.drills.drill import drilling
from tests.drills.load import Fate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def shared_cluster(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    shared = SharedCluster(lambda: running_cluster(redis_program, tmp_path_factory.mktemp("drills")))
    try:
        yield shared
    finally:
        shared.close()


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> Cluster:
    """Return two gateways, three engines and a Redis, all running and untouched by drills that failed."""
    return shared_cluster.sound()


async def test_an_engine_is_killed_and_restarted(cluster: Cluster) -> None:
    """Its calls go to the others, except begun streams, which end with an error event."""

    async with drilling("engine", cluster) as drill:
        victim = cluster.engines[0]
        victim.kill()
        for gateway in cluster.gateways:
            await until("the death is seen", drill.operator.sees, gateway, "remote-0", "down")
        await drill.load.more(40)
        await asyncio.to_thread(victim.start)
        for gateway in cluster.gateways:
            await until("the return is seen", drill.operator.sees, gateway, "remote-0", "up")
        done = victim.spec.log.with_suffix(".ledger").read_bytes().count(b"\n")

        async def has_calls() -> bool:
            return victim.spec.log.with_suffix(".ledger").read_bytes().count(b"\n") > done

        await until("the engine has calls again", has_calls)
    assert set(drill.load.ledger.reasons) <= {"failed: in a stream: engine_unavailable"}


async def test_a_gateway_is_killed_and_another_takes_its_place(cluster: Cluster) -> None:
    """Its calls count as lost when its lease ends, and their programs continue through the other one."""

    async with drilling("gateway", cluster, may_cut=True) as drill:
        victim, other = cluster.gateways
        victim.kill()
        await drill.load.more(40, other)

        async def has_expired() -> bool:
            return cluster.members() == 1

        await until("the lease ends", has_expired)
        await asyncio.to_thread(victim.start)
        await drill.load.more(40, victim)
    assert not drill.load.ledger.fates[Fate.FAILED]


async def test_redis_is_killed_and_restarted_empty(cluster: Cluster) -> None:
    """Gateways report it, continue in memory, and join the empty table."""

    async with drilling("redis", cluster, keeps_service=False) as drill:
        cluster.redis.stop()
        for gateway in cluster.gateways:
            await until("the outage is told", drill.operator.lacks_store, gateway)
            await drill.load.more(30, gateway)
        await asyncio.to_thread(cluster.redis.start)
        for gateway in cluster.gateways:
            await until("the return is told", drill.operator.has_store, gateway)
            await drill.load.more(20, gateway)
    assert not drill.load.ledger.fates[Fate.FAILED]


@pytest.mark.parametrize("manner", ["cut", "deafen"])
async def test_a_gateway_is_disconnected_from_redis(cluster: Cluster, manner: str) -> None:
    """It continues in memory, the others count its calls as lost, and it joins the table again."""

    async with drilling(f"partition-{manner}", cluster, keeps_service=False) as drill:
        other, parted = cluster.gateways
        part: Callable[[], None] = getattr(cluster.line, manner)
        part()
        await until("the partition is told", drill.operator.lacks_store, parted)

        async def has_expired() -> bool:
            return cluster.members() == 1

        await until("the lease ends", has_expired)
        await until("the other one goes on with the table", drill.operator.has_store, other)
        await drill.load.more(30, parted)
        cluster.line.mend()
        await until("the return is told", drill.operator.has_store, parted)
        await drill.load.more(20, parted)
    assert not drill.load.ledger.fates[Fate.FAILED]


async def test_all_engines_are_restarted_in_turn(cluster: Cluster) -> None:
    """Each is drained, stopped, started and undrained in turn, and every call is answered."""

    async with drilling("rolling-restart", cluster) as drill:
        operator = drill.operator
        for number, engine in enumerate(cluster.engines):
            name = f"remote-{number}"
            for gateway in cluster.gateways:
                await operator.tell(gateway, name, "drain")

            async def is_idle(name: str = name) -> bool:
                seen = [await operator.engines(gateway) for gateway in cluster.gateways]
                return not any(one["open_calls"] for all_of in seen for one in all_of if one["name"] == name)

            await until("the engine has no call left", is_idle)
            assert await asyncio.to_thread(engine.stop) == 0
            await asyncio.to_thread(engine.start)
            for gateway in cluster.gateways:
                await operator.tell(gateway, name, "undrain")
                await until("the engine is back", operator.sees, gateway, name, "up")
            await drill.load.more(20)
    assert not drill.load.ledger.reasons
