"""One request of each tenant starts in an iteration of the event loop."""

from __future__ import annotations

import asyncio

from tests.waiting import PATIENCE_S

from autellix_backend.gateway.fairness import FairStart


async def test_one_request_of_each_tenant_starts_in_an_iteration_of_the_event_loop() -> None:
    fair, started = FairStart(), list[tuple[str, int]]()

    async def ask(tenant: str, number: int) -> None:
        await fair.wait(tenant)
        started.append((tenant, number))

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(ask("hostile", number))
        await asyncio.sleep(0)
        group.create_task(ask("quiet", 0))
        # Its start does not wait for those of the other.
        await asyncio.sleep(0)
        assert ("quiet", 0) in started
        before = len(started)
        await asyncio.sleep(0)
        assert len(started) <= before + 1
    assert [number for tenant, number in started if tenant == "hostile"] == [*range(20)]


async def test_a_cancelled_request_takes_no_turn() -> None:
    fair = FairStart()
    tasks = [asyncio.create_task(fair.wait("a")) for _ in range(20)]
    await asyncio.sleep(0)
    for task in tasks[1:19]:
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [False] + [True] * 18 + [False]
