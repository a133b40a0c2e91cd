"""Engines that a Ray cluster places: on which nodes, what happens when they die, and what comes back.

The cluster is real, two nodes on this machine; the servers are small stand-ins, in the last test real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.ray_cluster import NODES
from tests.waiting import until

from autellix_backend.engines import ray_replica
from autellix_backend.engines.base import EngineError
from autellix_backend.engines.ray_replica import RayReplica
from autellix_backend.engines.supervisor import EngineState, Supervisor
from autellix_backend.settings import EngineSettings, RaySettings, Settings

READY = re.compile(r"Autellix is ready: demo at (http://127\.0\.0\.1:\d+)/v1")
FAKE_SERVER = (sys.executable, "-S", str(Path(__file__).parent / "fake_server.py"))


def test_an_invalid_address_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"ray\.address: is 'demo'; expected auto, or HOST:PORT"):
        RaySettings(address="demo")


def test_without_ray_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    replica = RayReplica(Settings(ray=RaySettings(address="auto")), asyncio.Lock(), name="replica-0")
    with pytest.raises(EngineError, match=r"pip install 'autellix-backend\[ray\] @ "):
        asyncio.run(replica.start())


def settings_for(ray_cluster: Any, folder: Path, *extra_args: str, **ray: Any) -> Settings:
    return Settings(
        engine=EngineSettings(
            model="m",
            extra_args=extra_args,
            state_dir=folder,
            startup_timeout_s=60.0,
        ),
        ray=RaySettings(address=ray_cluster.address, **ray),
    )


@contextlib.asynccontextmanager
async def replicas(settings: Settings, count: int) -> AsyncIterator[list[RayReplica]]:
    connecting = asyncio.Lock()
    made = [
        RayReplica(settings, connecting, name=f"replica-{number}", server=FAKE_SERVER)
        for number in range(count)
    ]
    try:
        await asyncio.gather(*(replica.start() for replica in made))
        yield made
    finally:
        await asyncio.gather(*(replica.stop() for replica in made))


async def die(replica: RayReplica) -> None:
    async with aiohttp.ClientSession() as client:
        with contextlib.suppress(aiohttp.ClientError):
            await client.get(replica.base_url + "/die")


def test_a_head_that_does_not_answer_ends_the_start_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings = Settings(ray=RaySettings(address=f"127.0.0.1:{port}"))
    replica = RayReplica(settings, asyncio.Lock(), name="replica-0")
    with pytest.raises(EngineError, match=rf"ray\.address: nothing answers at '127\.0\.0\.1:{port}'"):
        asyncio.run(replica.start())


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
# Ray's own, of the Python that it runs on
@pytest.mark.filterwarnings("ignore")
class TestOnACluster:
    async def test_replicas_are_spread_over_the_nodes_and_answer(
        self, ray_cluster: Any, tmp_path: Path
    ) -> None:
        async with replicas(settings_for(ray_cluster, tmp_path), NODES) as made:
            assert len({replica.place.node for replica in made if replica.place}) == NODES
            assert [(await replica.probe(5)).problem for replica in made] == [None] * NODES
        assert not any(replica.is_alive() for replica in made)
        assert (await made[0].probe(5)).problem is not None

    async def test_replicas_that_do_not_fit_fail_in_time(
        self, ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_replica, "PLACEMENT_TIMEOUT_S", 1.0)
        settings = settings_for(ray_cluster, tmp_path, cpus=NODES + 1.0)
        with pytest.raises(EngineError, match="found no node with room within 1 s"):
            async with replicas(settings, 1):
                pass

    async def test_a_failed_start_names_its_cause(self, ray_cluster: Any, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match=r"on node \w+: .*the model is too large"):
            async with replicas(settings_for(ray_cluster, tmp_path, "--fail=start"), 1):
                pass

    @pytest.mark.parametrize("way", ["server", "actor"])
    async def test_the_supervisor_places_a_dead_replica_again(
        self, ray_cluster: Any, tmp_path: Path, way: str
    ) -> None:
        """Whether the server died or the actor's process with it."""

        settings = settings_for(ray_cluster, tmp_path)
        async with replicas(settings, 1) as [replica]:
            supervisor = Supervisor(replica, settings.engine)
            told: list[tuple[EngineState, str | None]] = []
            supervisor.subscribe(lambda change: told.append((change.state, change.reason)))
            supervisor.open()
            try:
                before = replica.base_url
                if way == "server":
                    await die(replica)
                else:
                    assert replica.place is not None
                    os.kill(replica.place.pid, signal.SIGKILL)
                await until(lambda: EngineState.UP in [state for state, _ in told])
                assert [state for state, _ in told] == [EngineState.RESTARTING, EngineState.UP]
                expected = "told to die" if way == "server" else "was lost with its actor"
                assert expected in str(told[0][1])
                assert (await replica.probe(5)).problem is None
                assert replica.base_url != before
            finally:
                await supervisor.close()

    async def test_the_scheduler_reports_at_a_port_of_the_node(
        self, ray_cluster: Any, tmp_path: Path
    ) -> None:
        """With a secret of this gateway's own."""
        async with (
            replicas(settings_for(ray_cluster, tmp_path), 1) as [replica],
            aiohttp.ClientSession() as client,
            client.get(replica.base_url + "/tell") as response,
        ):
            [address] = replica.report_endpoints
            assert address.startswith("tcp://")
            assert await response.text() == f"{address} {replica.report_secret}"

    @pytest.mark.vllm
    @pytest.mark.timeout(600)
    def test_the_command_serves_real_vllm_from_a_node(
        self, ray_cluster: Any, tmp_path: Path, demo_model: Path
    ) -> None:
        """A call is charged by the engine's report, and a signal ends gateway, actor and server."""
        command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", str(demo_model)]
        options = ["--port=0", f"--ray={ray_cluster.address}", "--served-model-name=demo", "--max-num-seqs=4"]
        environment = {**os.environ, "AUTELLIX_CACHE_DIR": str(tmp_path)}

        async def main() -> None:
            process = await asyncio.create_subprocess_exec(
                *command, *options, stdout=asyncio.subprocess.PIPE, env=environment
            )
            try:
                assert process.stdout is not None
                ready = READY.search((await process.stdout.readline()).decode())
                assert ready is not None
                engine_url = await use(ready[1])
            finally:
                process.terminate()
                code = await process.wait()
            assert code == 0
            async with aiohttp.ClientSession() as client:
                with pytest.raises(aiohttp.ClientConnectorError):
                    await client.get(engine_url + "/health")

        async def use(root: str) -> str:
            body = {"model": "demo", "prompt": "a b c", "max_tokens": 8, "ignore_eos": True}
            async with aiohttp.ClientSession() as client:
                async with client.post(root + "/v1/completions", json=body) as response:
                    assert response.status == 200, await response.text()
                    receipt = (await response.json())["autellix"]
                async with client.get(root + "/autellix/v1/engines") as response:
                    [engine] = (await response.json())["engines"]
            assert (receipt["estimated"], receipt["output_tokens"]) == (False, 8)
            assert engine["sends_reports"]
            return str(engine["base_url"])

        asyncio.run(main())
