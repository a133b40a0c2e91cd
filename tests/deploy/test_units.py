"""The systemd units and the Dockerfile: valid, and true to the program that they start."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.deploy.chart import DEPLOY
from tests.deploy.test_guide import commands_of

from autellix_backend.cli.server import FLUSH_TIMEOUT_S
from autellix_backend.engines.factory import make_remote
from autellix_backend.engines.replica import EXIT_MARGIN_S, SHUTDOWN_TIMEOUT_S
from autellix_backend.engines.vllm_command import RESERVED_ARGUMENTS, SCHEDULER_CLASS
from autellix_backend.settings import Settings, load_settings, report_secret
from autellix_backend.vllm_plugin.settings import PluginSettings

ROOT = DEPLOY.parent
UNITS = DEPLOY / "systemd"
GATEWAY, ENGINE = UNITS / "autellix-gateway@.service", UNITS / "autellix-engine@.service"
VARIABLE = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)\}?")


def directives(unit: Path) -> dict[str, str]:
    """Return what a unit sets, continued lines joined."""
    text = unit.read_text().replace("\\\n", " ")
    pairs = [line.partition("=") for line in text.splitlines() if line[:1].isalpha()]
    return {name: value for name, _, value in pairs}


def environment(path: Path) -> dict[str, str]:
    """Return the variables of a file for EnvironmentFile=, those in comments too."""
    lines = re.findall(r"^(?:# )?([A-Z][A-Z0-9_]*)=(.*)$", path.read_text(), re.MULTILINE)
    return {name: value[1:-1] if value[:1] in "'\"" else value for name, value in lines}


@pytest.mark.parametrize("unit", [GATEWAY, ENGINE], ids=lambda path: path.stem)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    # It looks for the programs, which are not installed here.
    copied = tmp_path / unit.name.replace("@", "@1")
    copied.write_text(re.sub(r"/opt/autellix/bin/\w+", "/bin/true", unit.read_text()))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copied)], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if copied.name in line]
    assert (done.returncode, told) == (0, [])


def test_the_guides_units_are_enabled(tmp_path: Path) -> None:
    """In a root of its own, where `--now` does not apply."""
    if shutil.which("systemctl") is None:
        pytest.skip("systemd is not installed")
    folder = tmp_path / "etc" / "systemd" / "system"
    shutil.copytree(UNITS, folder)
    [units] = [words[3:] for words in commands_of("systemctl") if words[1:3] == ["enable", "--now"]]
    done = subprocess.run(
        ["systemctl", f"--root={tmp_path}", "enable", *units], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    wanted = {path.name for path in (folder / "multi-user.target.wants").iterdir()}
    assert wanted == {f"{unit}.service" for unit in units}


def test_the_gateways_variables_are_settings(tmp_path: Path) -> None:
    settings = load_settings(environ=environment(UNITS / "gateway.env"))
    assert len(settings.engine.urls) == 3
    assert settings.store.is_shared
    assert settings.gateway.token_secret
    assert not settings.engine.must_answer
    folder = Path("/var/lib") / directives(GATEWAY)["StateDirectory"]
    assert environment(UNITS / "gateway.env")["AUTELLIX_CACHE_DIR"] == str(folder)


def test_the_units_stop_timeout_exceeds_the_gateways_drain() -> None:
    """With engines of its own too."""
    settings = Settings()
    longest_s = settings.gateway.shutdown_grace_s + FLUSH_TIMEOUT_S
    longest_s += SHUTDOWN_TIMEOUT_S + EXIT_MARGIN_S
    assert int(directives(GATEWAY)["TimeoutStopSec"]) >= longest_s


def test_the_units_stop_timeout_exceeds_the_engines_drain() -> None:
    unit = directives(ENGINE)
    words = shlex.split(unit["ExecStart"])
    assert int(unit["TimeoutStopSec"]) >= int(words[words.index("--shutdown-timeout") + 1]) + EXIT_MARGIN_S


def test_an_engine_schedules_by_programs() -> None:
    words = shlex.split(directives(ENGINE)["ExecStart"])
    assert words[words.index("--scheduler-cls") + 1] == SCHEDULER_CLASS
    config = json.loads(environment(UNITS / "engine.env")["ENGINE_ADDITIONAL_CONFIG"])
    assert PluginSettings.from_additional_config(config).scheduler == Settings().scheduler
    assert [word for word in words if word.startswith("--") and word not in RESERVED_ARGUMENTS] == []


def test_an_engine_reports_where_gateways_ask() -> None:
    engine, gateway = environment(UNITS / "engine.env"), environment(UNITS / "gateway.env")
    told = PluginSettings.from_additional_config(json.loads(engine["ENGINE_ADDITIONAL_CONFIG"]))
    settings = load_settings(environ=gateway).engine
    remote = make_remote(settings, f"http://engine1:{engine['ENGINE_PORT']}", name="e", kind="vllm")
    [endpoint] = remote.report_endpoints
    assert told.report_address is not None
    assert told.report_address.rpartition(":")[2] == endpoint.rpartition(":")[2]
    assert report_secret(engine) == settings.report_secret is not None


def test_an_engine_may_write_where_vllm_keeps_its_caches() -> None:
    """Its user's own home is hidden, and everything else read-only."""
    unit = directives(ENGINE)
    cache = f"/var/cache/{unit['CacheDirectory']}"
    variables = dict(word.split("=", 1) for word in unit["Environment"].split())
    assert {variables["HOME"], variables["HF_HOME"]} == {cache}
    assert (unit["ProtectHome"], unit["ProtectSystem"]) == ("yes", "strict")


def test_a_unit_uses_variables_that_its_file_has() -> None:
    used = set(VARIABLE.findall(directives(ENGINE)["ExecStart"]))
    assert used <= set(environment(UNITS / "engine.env"))
    reload = set(VARIABLE.findall(directives(GATEWAY)["ExecReload"])) - {"MAINPID"}
    assert reload <= set(environment(UNITS / "gateway.env"))


def test_the_image_uses_existing_files_and_extras() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    client, backend = (
        tomllib.loads((ROOT / path).read_text()) for path in ("pyproject.toml", "backend/pyproject.toml")
    )
    [extras] = re.findall(r'"\$backend\[([a-z,]+)\]"', text)
    assert set(extras.split(",")) <= set(backend["project"]["optional-dependencies"])
    # All that the wheels are made from.
    packages = client["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {"backend", *(path.split("/")[0] for path in packages)} <= set(copied)


def test_the_image_has_the_scheduler_where_the_chart_looks_for_it() -> None:
    target = re.findall(r"--target (\S+)", (DEPLOY / "docker" / "Dockerfile").read_text())
    template = (DEPLOY / "helm" / "autellix" / "templates" / "engine.yaml").read_text()
    assert re.findall(r'"cp", "-r", "(\S+)/\."', template) == target
