"""The chart drill: what its renderer makes of the chart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.deploy.drill.pods import Part, expand, of_part
from tests.deploy.drill.shipped import Size, by_chart

from autellix_backend.engines.vllm_command import EXECUTOR_ARGUMENT, IN_PROCESS_EXECUTOR

SECRET = "AUTELLIX_ENGINE_REPORT_SECRET"


@pytest.fixture
def size(tmp_path: Path) -> Size:
    return Size(engines=3, gateways=2, policy="plas", model=tmp_path / "model")


@pytest.mark.usefixtures("redis_program")
def test_the_chart_makes_all_parts(size: Size, tmp_path: Path) -> None:
    """With one secret, one policy, and addresses that lead to the engines."""
    pytest.importorskip("helm_python", reason="Helm is not installed: `helm-python-sdk`")
    _, pods = by_chart(size, tmp_path)
    engines, gateways = of_part(pods, Part.ENGINE), of_part(pods, Part.GATEWAY)
    assert (len(engines), len(gateways), len(of_part(pods, Part.REDIS))) == (3, 2, 1)
    secrets = {pod.main.environment[SECRET] for pod in (*engines, *gateways)}
    assert len(secrets) == 1
    for gateway in gateways:
        variables = gateway.main.environment
        assert variables["AUTELLIX_SCHEDULER_POLICY"] == "plas"
        assert gateway.main.is_read_only
        assert gateway.main.user == 1000
        hosts = [url.split("//")[1].split(":")[0] for url in variables["AUTELLIX_ENGINE_URLS"].split()]
        known = [{*pod.names, *pod.ready_names} for pod in engines]
        assert all(host in names for host, names in zip(hosts, known, strict=True))
    for engine in engines:
        command = engine.main.command
        config = json.loads(command[command.index("--additional-config") + 1])["autellix"]
        # As on one machine: without a worker process.
        assert command[command.index(EXECUTOR_ARGUMENT) + 1] == IN_PROCESS_EXECUTOR
        assert config["scheduler"]["policy"] == "plas"
        assert (
            engine.main.environment["VLLM_API_KEY"] == gateways[0].main.environment["AUTELLIX_ENGINE_API_KEY"]
        )
    [redis] = of_part(pods, Part.REDIS)
    password = redis.main.command[redis.main.command.index("--requirepass") + 1]
    store = gateways[0].main.environment["AUTELLIX_STORE_URL"]
    assert store.startswith(f"redis://:{password}@")
    assert store.split("@")[1].split(":")[0] in redis.names


def test_an_engine_finds_our_packages_only_where_the_chart_puts_them(size: Size, tmp_path: Path) -> None:
    pytest.importorskip("helm_python", reason="Helm is not installed: `helm-python-sdk`")
    _, pods = by_chart(size, tmp_path)
    engine = of_part(pods, Part.ENGINE)[0]
    [first] = engine.first
    assert first.command == ("cp", "-r", "/opt/autellix/plugin/.", "/plugin")
    assert engine.main.environment["PYTHONPATH"] == "/plugin"
    assert {mount.volume for mount in first.mounts} <= {mount.volume for mount in engine.main.mounts}


def test_variables_are_put_in_as_kubernetes_does() -> None:
    assert expand("a$(ONE)-$(TWO)-$$(ONE)", {"ONE": "1"}) == "a1-$(TWO)-$(ONE)"
