"""The compose file: valid, and alike the chart in what it starts."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.chart import DEPLOY, container, render, variables
from tests.deploy.compose import MissingVariableError, environment_file, read_compose

from autellix_backend.cli.config_check import problems_of
from autellix_backend.cli.server import FLUSH_TIMEOUT_S
from autellix_backend.engines.factory import make_remote
from autellix_backend.settings import Settings, load_settings, report_secret
from autellix_backend.vllm_plugin.settings import PluginSettings

FOLDER = DEPLOY / "compose"
FILE = FOLDER / "compose.yaml"
EXAMPLE = environment_file((FOLDER / "env.example").read_text())
FILLED = {name: value or f"a secret named {name}" for name, value in EXAMPLE.items()}
ENGINES = ("engine-0", "engine-1")


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = read_compose(FILE, FILLED)["services"]
    return found


def test_docker_accepts_the_file(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    env_file = tmp_path / "env"
    env_file.write_text("".join(f"{name}='{value}'\n" for name, value in FILLED.items()))
    command = [docker, "compose", "--env-file", str(env_file), "--file", str(FILE), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "name", [name for name, value in EXAMPLE.items() if not value and name != "HF_TOKEN"]
)
def test_a_secret_that_is_not_filled_in_is_an_error(name: str) -> None:
    with pytest.raises(MissingVariableError, match=rf"{name}: see env\.example"):
        read_compose(FILE, {**FILLED, name: ""})


def test_engines_start_as_in_the_chart(services: dict[str, Any]) -> None:
    chart = container(render(), "engine")
    for name in ENGINES:
        assert services[name]["entrypoint"] == chart["command"]
        words, expected = services[name]["command"], list(chart["args"])
        # The same, but for the blanks of its JSON.
        at = words.index("--additional-config") + 1
        assert json.loads(words[at]) == json.loads(expected[at])
        assert [*words[:at], *words[at + 1 :]] == [*expected[:at], *expected[at + 1 :]]
        assert services[name]["image"] == chart["image"]


def test_redis_starts_as_in_the_chart(services: dict[str, Any]) -> None:
    chart = container(render(), "redis")
    password = FILLED["REDIS_PASSWORD"]
    expected = [*chart["command"], *chart["args"]]
    assert services["redis"]["command"] == [password if "$(" in word else word for word in expected]
    assert services["redis"]["image"] == chart["image"]


def test_gateways_have_the_charts_settings(services: dict[str, Any]) -> None:
    own = services["gateway"]["environment"]
    chart = variables(render(), "gateway")
    keys = {"AUTELLIX_GATEWAY_TENANTS_FILE", "AUTELLIX_API_KEY"}
    assert own.keys() - {"AUTELLIX_GATEWAY_OPEN"} == chart.keys() - {"REDIS_PASSWORD"} - keys
    plain = {"AUTELLIX_ENGINE_URLS", "AUTELLIX_CACHE_DIR", "AUTELLIX_STORE_URL"} | keys
    alike = {name: value for name, value in chart.items() if isinstance(value, str) and name not in plain}
    assert {name: own[name] for name in alike} == alike


def test_gateways_reach_the_engines_and_their_reports(services: dict[str, Any]) -> None:
    settings = load_settings(environ=services["gateway"]["environment"]).engine
    assert [url.split("//")[1] for url in settings.urls] == [f"{name}:8000" for name in ENGINES]
    for name, url in zip(ENGINES, settings.urls, strict=True):
        words = services[name]["command"]
        config = json.loads(words[words.index("--additional-config") + 1])
        told = PluginSettings.from_additional_config(config)
        remote = make_remote(settings, url, name=name, kind="vllm")
        assert told.report_address == "tcp://0.0.0.0:9000"
        assert list(remote.report_endpoints) == [f"tcp://{name}:9000"]
        assert report_secret(services[name]["environment"]) == settings.report_secret is not None
        assert services[name]["environment"]["VLLM_API_KEY"] == settings.api_key
        assert set(services[name]["networks"]) <= set(services["gateway"]["networks"])


def test_calls_may_end_before_their_service_does(services: dict[str, Any]) -> None:
    """Gateways, the proxy in front of them, and engines."""
    grace_s = Settings().gateway.shutdown_grace_s
    for name in ("gateway", "proxy", *ENGINES):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) >= grace_s + FLUSH_TIMEOUT_S
    assert "AUTELLIX_GATEWAY_SHUTDOWN_GRACE_S" not in services["gateway"]["environment"]


def test_without_keys_the_gateway_is_open_by_choice_only(services: dict[str, Any]) -> None:
    """What .env says, and refused where it says nothing."""
    assert load_settings(environ=services["gateway"]["environment"]).gateway.open
    silent = read_compose(FILE, {**FILLED, "GATEWAY_OPEN": ""})["services"]["gateway"]["environment"]
    [problem] = [each for each in problems_of(load_settings(environ=silent)) if "gateway.host" in each]
    assert "no key is asked" in problem


def test_only_the_proxy_is_open_to_clients(services: dict[str, Any]) -> None:
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    assert all(port.startswith("127.0.0.1:") for port in services["proxy"]["ports"])
    assert services["proxy"]["networks"] == ["default"]
