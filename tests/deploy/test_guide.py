"""The commands of the guide for clusters name what we ship: values, objects, services, units, files."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import yaml
from tests.deploy.chart import CHART, DEPLOY, NAMESPACE, RELEASE, Manifest, container, render
from tests.docs.pages import ROOT, Page

from autellix_backend.engines.vllm_command import SCHEDULER_CLASS
from autellix_backend.vllm_plugin.settings import PluginSettings

KINDS = {"deploy": "Deployment", "service": "Service", "statefulset": "StatefulSet"}
UNITS = DEPLOY / "systemd"


def read_guide() -> Page:
    path = ROOT / "docs" / "guides" / "cluster.md"
    return Page(path, path.read_text(encoding="utf-8"))


COMMANDS = read_guide().commands()


def commands_of(*names: str) -> list[list[str]]:
    """Return the guide's commands of any of these programs."""
    found = [words for words in COMMANDS if words[0] in names]
    assert found, f"the guide has no {names}"
    return found


def values_in(words: list[str]) -> dict[str, Any]:
    """Return what `--set` sets."""
    values: dict[str, Any] = {}
    for option, argument in itertools.pairwise(words):
        if option == "--set":
            name, _, text = argument.partition("=")
            *sections, last = name.split(".")
            place = values
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = yaml.safe_load(text)
    return values


def lacks(values: dict[str, Any], known: Any, path: str = "") -> list[str]:
    """Return the values that the chart does not have."""
    found: list[str] = []
    for name, value in values.items():
        if name not in known:
            found.append(f"{path}{name}")
        elif isinstance(value, dict):
            found += lacks(value, known[name], f"{path}{name}.")
    return found


def rendered() -> list[Manifest]:
    [install] = [words for words in commands_of("helm") if words[1] == "install"]
    return render(values_in(install))


def test_helm_commands_name_the_chart_and_its_values() -> None:
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    for words in commands_of("helm"):
        assert words[2] == RELEASE
        assert words[words.index("--namespace") + 1] == NAMESPACE
        assert words[1] == "rollback" or words[3] == str(CHART.relative_to(ROOT))
        assert lacks(values_in(words), known) == []
    assert rendered()


def test_the_values_for_gpus_are_the_charts() -> None:
    """They give each engine as many GPUs as its tensor parallel size."""
    path = ROOT / "docs" / "guides" / "sizing.md"
    [values] = map(yaml.safe_load, Page(path, path.read_text(encoding="utf-8")).fenced("yaml"))
    assert lacks(values, yaml.safe_load((CHART / "values.yaml").read_text())) == []
    engine = container(render(values), "engine")
    gpus = engine["args"][engine["args"].index("--tensor-parallel-size") + 1]
    assert str(engine["resources"]["limits"]["nvidia.com/gpu"]) == gpus


def test_kubectl_commands_name_objects_of_the_chart() -> None:
    manifests = rendered()
    names = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    templates = [each["spec"]["template"] for each in manifests if "template" in each.get("spec", {})]
    labels = [template["metadata"]["labels"] for template in templates]
    for words in commands_of("kubectl"):
        assert words[words.index("-n") + 1] == NAMESPACE
        for word in words:
            kind, _, name = word.partition("/")
            assert kind not in KINDS or (KINDS[kind], name) in names
        if "-l" in words:
            label, _, value = words[words.index("-l") + 1].partition("=")
            assert value in [each.get(label) for each in labels]
        if "delete" in words:
            assert ("StatefulSet", words[-1].rpartition("-")[0]) in names


def test_compose_commands_name_services() -> None:
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    named = [
        word
        for words in commands_of("docker")
        if words[1] == "compose"
        for word in words[3:]
        if word.split("-")[0] in ("gateway", "engine", "scheduler", "redis")
    ]
    assert {"gateway", "engine-0"} <= set(named) <= set(services)


def test_units_and_their_files_are_those_that_we_ship() -> None:
    shipped = {path.name for path in UNITS.iterdir()}
    for words in commands_of("systemctl", "journalctl"):
        units = [word for word in words if word.startswith("autellix-")]
        assert units
        for unit in units:
            name, at, _ = unit.partition("@")
            assert f"{name}{at}.service" in shipped
    read = "".join((UNITS / name).read_text() for name in shipped if name.endswith(".service"))
    for words in commands_of("install"):
        *_, source, target = words
        if target == ".env":
            assert (DEPLOY / "compose" / source).is_file()
            continue
        assert (ROOT / source).is_file()
        assert f"EnvironmentFile={target.replace('gpu0', '%i')}" in read


def test_the_engine_of_the_guide_reports() -> None:
    [words] = [words for words in commands_of("python") if "vllm.entrypoints.openai.api_server" in words]
    assert words[words.index("--scheduler-cls") + 1] == SCHEDULER_CLASS
    config = json.loads(words[words.index("--additional-config") + 1])
    port = int(words[words.index("--port") + 1])
    assert PluginSettings.from_additional_config(config).report_address == f"tcp://0.0.0.0:{port + 1000}"


def test_a_value_that_the_chart_lacks_is_found() -> None:
    assert lacks(values_in(["--set", "engine.replcas=4"]), {"engine": {"replicas": 2}}) == ["engine.replcas"]
    with pytest.raises(AssertionError):
        commands_of("no-such-program")
