"""The guide's lines for Kubernetes, typed: Helm and kubectl themselves, before an API that keeps objects."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.chart import CHART, NAMESPACE, RELEASE, render
from tests.deploy.kubernetes import RESOURCES, KubernetesObjects, serve_kubernetes
from tests.deploy.test_guide import commands_of, rendered
from tests.docs.pages import ROOT

POD = f"{RELEASE}-gateway-0"
TIMEOUT_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesObjects]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with serve_kubernetes(tmp_path / "kubeconfig") as cluster:
        yield cluster


def program(name: str) -> str:
    """Return where a program is, or skip the test."""
    if (found := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed")
    return found


def type_line(words: list[str]) -> str:
    """Run a line of the guide in the repository's root, and return what it says."""
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def state(cluster: KubernetesObjects) -> tuple[str, int, dict[str, str]]:
    """Return the gateways' image, the number of engines and the secrets."""
    objects = cluster.objects
    gateway = objects["deployments", NAMESPACE, f"{RELEASE}-gateway"]
    engine = objects["statefulsets", NAMESPACE, f"{RELEASE}-engine"]
    secret: dict[str, str] = dict(objects["secrets", NAMESPACE, f"{RELEASE}-secrets"]["data"])
    image: str = gateway["spec"]["template"]["spec"]["containers"][0]["image"]
    return image, engine["spec"]["replicas"], secret


def test_helm_installs_upgrades_and_rolls_back(cluster: KubernetesObjects, tmp_path: Path) -> None:
    """Values and secrets survive an upgrade to another release's chart, and the way back."""
    helm = program("helm")
    lines = {words[1]: [helm, *words[1:]] for words in commands_of("helm")}
    newer = tmp_path / "chart"
    shutil.copytree(CHART, newer)
    version = render()[0]["metadata"]["labels"]["app.kubernetes.io/version"]
    about = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(about.replace(f'appVersion: "{version}"', 'appVersion: "9.9.9"'))
    chart = str(CHART.relative_to(ROOT))

    assert f"{RELEASE}-gateway.{NAMESPACE}.svc" in type_line(lines["install"])
    image, engines, secrets = state(cluster)
    assert (image, engines) == (f"registry.internal/autellix:{version}", 4)
    assert all(secrets.values())
    assert len(secrets) == 4

    type_line([str(newer) if word == chart else word for word in lines["upgrade"]])
    assert state(cluster) == ("registry.internal/autellix:9.9.9", engines, secrets)

    type_line(lines["rollback"])
    assert state(cluster) == (image, engines, secrets)


def test_kubectl_finds_what_the_chart_makes(cluster: KubernetesObjects) -> None:
    kubectl = program("kubectl")
    resources = {kind: name for kinds in RESOURCES.values() for name, kind in kinds.items()}
    for manifest in rendered():
        cluster.put(resources[manifest["kind"]], NAMESPACE, manifest)
    told: list[tuple[list[str], Any]] = []
    for line in commands_of("kubectl"):
        words = [kubectl, *(POD if word == "POD" else word for word in line[1:])]
        if "port-forward" in words:
            # A free port of ours, as the guide's may be in use here.
            told.append((line, forwarded([*words[:-1], f":{words[-1]}"])))
        else:
            told.append((line, type_line(words)))

    for line, answer in told:
        if "exec" in line:
            assert answer.split() == [POD, "gateway", *line[line.index("--") + 1 :]]
        elif "get" in line:
            assert POD in answer
        elif "rollout" in line:
            assert "rolling update complete" in answer
        elif "port-forward" in line:
            assert answer.endswith("-> 8000")
        else:
            assert "deleted" in answer
    assert ("pods", NAMESPACE, f"{RELEASE}-engine-0") not in cluster.objects


def forwarded(words: list[str]) -> str:
    """Return what `port-forward` says once it listens."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            return process.stdout.readline().strip()
        finally:
            process.kill()
