"""The router in a real Ray Serve application, over its HTTP proxy."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from tests.ports import free_port

REPLICAS = 2
LIMIT = 4
LONG = {"messages": [{"role": "user", "content": "x" * 20_000}]}

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Ray's own, of the Python that it runs on
    pytest.mark.filterwarnings("ignore"),
]


def make_application() -> Any:
    """Return a deployment whose answer names the replica; Ray takes it along by value."""
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    router = RequestRouterConfig(
        request_router_class="autellix_backend.ray_serve.router.ProgramRouter",
        request_router_kwargs={"threshold_tokens": 1000},
    )

    class Echo:
        async def __call__(self, request: Any) -> str:
            await asyncio.sleep(float(request.headers.get("x-delay-s", "0")))
            return str(serve.get_replica_context().replica_id.unique_id)

    options = {
        "num_replicas": REPLICAS,
        "ray_actor_options": {"num_cpus": 0.1},
        "max_ongoing_requests": LIMIT,
    }
    return serve.deployment(request_router_config=router, **options)(Echo).bind()


@pytest.fixture
def url(ray_cluster: Any) -> Iterator[str]:
    import ray
    from ray import serve

    port = free_port()
    ray.init(ray_cluster.address, log_to_driver=False, ignore_reinit_error=True)
    # One proxy, for each remembers programs for itself; two nodes of one machine would share the port.
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    serve.run(make_application(), name="echo", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


async def ask(client: aiohttp.ClientSession, url: str, program: str, delay_s: float = 0.0) -> str:
    headers = {"X-Autellix-Program-ID": program, "X-Delay-S": str(delay_s)}
    async with client.post(url + "/", json=LONG, headers=headers) as response:
        assert response.status == 200
        return await response.text()


async def test_programs_stay_at_their_replicas_and_leave_them_when_they_are_full(url: str) -> None:
    async with aiohttp.ClientSession() as client, asyncio.timeout(90):
        # A replica that is slow to say how busy it is is passed over, as both are when they are new.
        await ask(client, url, "p")
        homes = {"p": await ask(client, url, "p")}
        busy = asyncio.create_task(ask(client, url, "p", delay_s=8.0))
        # Who comes while one replica is busy gets the other; until that is known, they are alike.
        for number in itertools.count():
            home = await ask(client, url, f"q{number}")
            if home != homes["p"] and home == await ask(client, url, f"q{number}"):
                homes[f"q{number}"] = home
                break
        assert await busy == homes["p"]

        for _ in range(10):
            for program, home in homes.items():
                assert await ask(client, url, program) == home

        calls = [ask(client, url, "p", delay_s=8.0) for _ in range(LIMIT + 1)]
        places = await asyncio.gather(*calls)
        assert places.count(homes["p"]) == LIMIT
        assert len(set(places)) == 2
