"""The same with real engines: vLLM dies under load, then a gateway, then Redis."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.drills.cluster import ENGINES, Cluster, running_cluster
from tests.drills.control import until
from tests.drills.drill import drilling
from tests.drills.processes import Spec
from tests.ports import free_port

from autellix_backend.engines.vllm_command import VLLM_SERVER, environment_defaults
from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "AUTELLIX_REAL_DRILLS" not in os.environ,
        reason="three engines at once want cores and ten minutes: set AUTELLIX_REAL_DRILLS to run it",
    ),
]

START_S = 600.0


def make_engine(number: int, model: Path, folder: Path) -> Spec:
    port = free_port()
    options = ["--model", str(model), "--served-model-name", DEMO_MODEL_NAME, "--enforce-eager"]
    return Spec(
        name=f"vllm-{number}",
        command=[*VLLM_SERVER, *options, "--max-num-seqs", "4", "--host", "127.0.0.1", "--port", str(port)],
        port=port,
        health_path="/health",
        log=folder / f"vllm-{number}.log",
        environment={**environment_defaults(str(model), is_cpu=True), **os.environ},
        start_s=START_S,
    )


@pytest.fixture(scope="module")
def cluster(
    redis_program: str, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("real-drills")
    engines = [make_engine(number, demo_model, folder) for number in range(ENGINES)]
    with running_cluster(redis_program, folder, engines) as cluster:
        yield cluster


async def test_real_engines_a_gateway_and_redis_die_in_turn(cluster: Cluster) -> None:
    """Every call is answered or fails clearly, and nothing is left of the programs."""

    async with drilling("real", cluster, model=DEMO_MODEL_NAME, may_cut=True, keeps_service=False) as drill:
        engine, (gateway, other), operator = cluster.engines[0], cluster.gateways, drill.operator
        engine.kill()
        for each in cluster.gateways:
            await until("the death is seen", operator.sees, each, "remote-0", "down")
        await drill.load.more(30)
        await asyncio.to_thread(engine.start)
        for each in cluster.gateways:
            await until("the return is seen", operator.sees, each, "remote-0", "up")
        gateway.kill()
        await drill.load.more(30, other)
        await asyncio.to_thread(gateway.start)
        await drill.load.more(20, gateway)
        cluster.redis.stop()
        for each in cluster.gateways:
            await until("the outage is told", operator.lacks_store, each)
            await drill.load.more(20, each)
        await asyncio.to_thread(cluster.redis.start)
        for each in cluster.gateways:
            await until("the return is told", operator.has_store, each)
            await drill.load.more(20, each)
    reasons = {reason for reason in drill.load.ledger.reasons if reason.startswith("failed")}
    assert reasons <= {"failed: in a stream: engine_unavailable"}
