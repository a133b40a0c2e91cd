"""Two gateways over one process table, with calls through both."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine, Fault
from tests.gateway.conftest import CHAT, HELLO
from tests.gateway.snapshots import snapshot, standing
from tests.redis_server import RedisServer
from tests.serving import listening
from tests.waiting import until

from autellix_backend.assembly import create_app
from autellix_backend.identity.classes import LEAST_PROGRAMS
from autellix_backend.settings import GatewaySettings, Settings, StoreSettings, TenantLimits

IDS = {"X-Autellix-Program-ID": "shared", "X-Autellix-Session-ID": "s"}


@asynccontextmanager
async def gateways(
    url: str, engine: FakeEngine | None = None
) -> AsyncIterator[tuple[aiohttp.ClientSession, str, str]]:
    engine = engine or FakeEngine(FakeBehaviour())
    await engine.start()
    store = StoreSettings(url=url, key_prefix="gateways", timeout_ms=2000)
    settings = Settings(gateway=GatewaySettings(), store=store)
    async with (
        listening(create_app(settings, engine)) as one,
        listening(create_app(settings, engine)) as other,
        aiohttp.ClientSession() as client,
    ):
        yield client, one, other
    await engine.stop()


async def read(client: aiohttp.ClientSession, url: str) -> Any:
    async with client.get(url) as response:
        assert response.status == 200
        return await response.json()


async def chat(client: aiohttp.ClientSession, url: str, **headers: str) -> Any:
    async with client.post(url + CHAT, json=HELLO, headers={**IDS, **headers}) as response:
        assert response.status == 200
        return await response.json()


def test_a_program_goes_through_both_and_outlives_the_loss_of_the_table(
    redis_program: str, tmp_path: Path
) -> None:
    server = RedisServer(redis_program, tmp_path)

    async def main() -> None:
        async with gateways(server.url) as (client, one, other):
            for url in (one, other):
                await chat(client, url)
            program = "/autellix/v1/programs/shared"
            assert (await read(client, one + program))["finished_calls"] == 2
            assert (await read(client, one + "/readyz"))["status"] == "ready"
            server.stop()
            await chat(client, one)
            ready = await read(client, one + "/readyz")
            assert ready["status"] == "degraded"
            assert "works alone" in ready["reason"]
            async with client.get(one + "/metrics") as response:
                text = await response.text()
            assert "autellix_store_up 0.0" in text
            assert "autellix_store_fallbacks_total 0.0" not in text
            server.start()

            async def is_back() -> bool:
                """Return whether both have the calls of both."""
                counts: list[int | None] = []
                for url in (one, other):
                    await chat(client, url)
                for url in (one, other):
                    async with client.get(url + program) as response:
                        view = await response.json()
                        counts.append(view.get("finished_calls"))
                states = [await read(client, url + "/readyz") for url in (one, other)]
                return [each["status"] for each in states] == ["ready"] * 2 and counts[0] == counts[
                    1
                ] is not None

            # The other gateway learns of the loss with its next look at the table.
            await until(is_back)
            async with client.delete(other + "/autellix/v1/programs/shared") as response:
                assert response.status == 204
            async with client.get(one + program) as response:
                assert response.status == 404

    server.start()
    try:
        asyncio.run(main())
    finally:
        server.stop()


def test_new_gateways_tell_a_new_engine_how_sizes_spread(redis_program: str, tmp_path: Path) -> None:
    """So the boost is as strong as before, although nobody remembers but Redis.

    What nothing identifies has no size at either gateway, whichever had its call.
    """
    server = RedisServer(redis_program, tmp_path)

    def told(engine: FakeEngine) -> list[object]:
        return [call.xargs.get("autellix_spread") for call in engine.calls]

    async def main() -> None:
        before = FakeEngine(FakeBehaviour())
        async with gateways(server.url, before) as (client, *urls):
            # No more than a spread needs: where it is known, the gateway knows all of them.
            for number in range(LEAST_PROGRAMS):
                headers = {"X-Autellix-Program-ID": f"p{number}", "X-Autellix-Final": "true"}
                content = "word " * (1 + 99 * (number % 3))
                body = {"model": "m", "messages": [{"role": "user", "content": content}]}
                async with client.post(urls[number % 2] + CHAT, json=body, headers=headers) as response:
                    assert response.status == 200
                single = {"model": "m", "messages": [{"role": "user", "content": f"{number} " * 3**number}]}
                async with client.post(urls[0] + CHAT, json=single) as response:
                    assert response.status == 200
            assert told(before)[0] is None

            async def is_known() -> bool:
                for url in urls:
                    await chat(client, url)
                return None not in told(before)[-2:]

            # Each gateway learns of the ends at the other one with its next look at the table.
            await until(is_known)
        after = FakeEngine(FakeBehaviour())
        async with gateways(server.url, after) as (client, *urls):
            for url in urls:
                await chat(client, url)
        # Each sums in an order of its own.
        assert told(after) == pytest.approx(told(before)[-2:])

    server.start()
    try:
        asyncio.run(main())
    finally:
        server.stop()


@pytest.mark.parametrize("budget", ["day_tokens", "program_tokens"])
async def test_a_budget_survives_a_restart(redis_server: RedisServer, budget: str) -> None:
    store = StoreSettings(url=redis_server.url, key_prefix=f"restart-{budget}", timeout_ms=2000)
    settings = Settings(store=store, limits=TenantLimits(**{budget: 8}))
    engine = FakeEngine(FakeBehaviour())
    await engine.start()
    statuses: list[int] = []
    async with aiohttp.ClientSession() as client:
        for _ in range(2):
            async with listening(create_app(settings, engine)) as url:
                for _ in range(2):
                    async with client.post(url + CHAT, json=HELLO, headers=IDS) as response:
                        statuses.append(response.status)
    await engine.stop()
    # What a program has used is known from its first call on.
    assert statuses == [200, 429, 429 if budget == "day_tokens" else 200, 429]


async def test_each_gateway_shows_the_calls_of_the_other(redis_server: RedisServer) -> None:
    """As the engine's snapshot has them, else at the other gateway, and not as running."""
    # Paths of unix sockets are short, pytest's folders are not.
    with tempfile.TemporaryDirectory() as folder:
        engine = FakeEngine(FakeBehaviour(fault=Fault.HANG), report_address=f"ipc://{folder}/reports")
        await check_both_show_it(redis_server.url, engine)


async def check_both_show_it(url: str, engine: FakeEngine) -> None:
    async with gateways(url, engine) as (client, one, other):

        async def shown(url: str) -> tuple[str, dict[str, int]]:
            """Return the program's state, and the programs by state."""
            states = (await read(client, url + "/autellix/v1/overview"))["now"]["states"]
            program = await read(client, url + "/autellix/v1/programs/shared")
            return program["state"], {each["state"]: each["programs"] for each in states if each["programs"]}

        call = asyncio.create_task(chat(client, one))
        await engine.wait_until(lambda: len(engine.calls) == 1)
        assert await shown(one) == ("in_engine", {"in_engine": 1})
        assert await shown(other) == ("at_another_gateway", {"at_another_gateway": 1})
        assert engine.report_server is not None
        key = engine.calls[0].xargs["autellix_call"]
        engine.report_server.broadcast(snapshot(standing("shared", place=1, level=1, call_id=key)))

        async def is_waiting() -> bool:
            expected = ("waiting_for_slot", {"waiting_for_slot": 1})
            return await shown(one) == await shown(other) == expected

        await until(is_waiting)
        why = await read(client, other + "/autellix/v1/programs/shared/why")
        assert why["text"].startswith("1 open call came through another gateway. ")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
