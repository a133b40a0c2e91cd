"""The files around the code: workflows, templates, and one version everywhere."""

from __future__ import annotations

import re
import runpy
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
BACKEND = tomllib.loads((ROOT / "backend/pyproject.toml").read_text("utf-8"))
VERSION = PROJECT["project"]["version"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED_TO = re.compile(r'"autellix(?:-backend)?(?:\[\w+\])?==([\d.]+)"')
OWN_EXTRAS = {"engine", "backend", "otel", "redis", "ray", "lab", "vllm", "cpu", "smollm2"}
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def read(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(read(workflow))["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    "path",
    [
        path.relative_to(ROOT)
        for pattern in (".github/**/*.yml", ".pre-commit-config.yaml", "CITATION.cff")
        for path in ROOT.glob(pattern)
    ],
    ids=str,
)
def test_yaml_can_be_read(path: Path) -> None:
    assert isinstance(yaml.safe_load(read(path)), dict)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_jobs_bounded(workflow: Path) -> None:
    """A tag of somebody else's repository may be moved; its commit may not."""
    text = read(workflow)
    used = re.findall(r"uses: (\S+)( # v[\d.]+)?", text)
    assert used
    assert [action for action, comment in used if not (PINNED.fullmatch(action) and comment)] == []
    loaded = yaml.safe_load(text)
    assert loaded["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in loaded["jobs"].values())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_checkout_keeps_no_credentials(workflow: Path) -> None:
    checkouts = [step for step in steps_of(workflow) if "actions/checkout@" in step.get("uses", "")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_exists(workflow: Path) -> None:
    """Scripts of ours, and targets of the Makefile."""
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    for step in steps_of(workflow):
        for line in step.get("run", "").splitlines():
            words = shlex.split(line)
            if words[0] == "make":
                assert words[1] in targets
            for word in words:
                assert not word.startswith("scripts/") or (ROOT / word).exists(), word


def test_ci_runs_what_the_makefile_does() -> None:
    """As .ci/run does."""
    run = {
        step["run"].split()[1] for step in steps_of(ROOT / ".github/workflows/ci.yml") if "make" in str(step)
    }
    assert run == set(re.findall(r"^make (\S+)", read(".ci/run"), re.MULTILINE))


def test_there_is_one_version() -> None:
    """pyproject.toml names it; these follow."""
    chart = yaml.safe_load(read("deploy/helm/autellix/Chart.yaml"))
    citation = yaml.safe_load(read("CITATION.cff"))
    images = re.findall(
        r"autellix(?:-plugin)?:(\d\S+)", read("deploy/compose/compose.yaml") + read("docs/guides/cluster.md")
    )
    assert len(images) > 2
    found = {chart["version"], chart["appVersion"], citation["version"], *images}
    # The distributions need each other's same version.
    packages = [
        BACKEND["project"]["version"],
        *PINNED_TO.findall(read("pyproject.toml") + read("backend/pyproject.toml")),
    ]
    assert len(packages) == 2 + len(OWN_EXTRAS)
    assert found | set(packages) == {VERSION}


def test_each_extra_of_the_backend_is_one_of_the_client() -> None:
    """`pip install 'autellix[redis]'` is what messages name, and the gateway is `autellix[backend]`."""
    forwarded = {
        name: re.findall(r"^autellix-backend(?:\[(\w+)\])?==", requirements[0])
        for name, requirements in PROJECT["project"]["optional-dependencies"].items()
        if requirements[0].startswith("autellix-backend")
    }
    assert set(forwarded) == OWN_EXTRAS
    extras = {name: target for name, [target] in forwarded.items()}
    assert extras.pop("engine") == ""
    assert extras.pop("backend") == "gateway"
    assert extras == {name: name for name in BACKEND["project"]["optional-dependencies"] if name != "gateway"}


def test_the_changelog_dates_the_version() -> None:
    """Its section, with the citation's date; work that follows goes into "Unreleased" above it."""
    date = yaml.safe_load(read("CITATION.cff"))["date-released"]
    assert f"\n## {VERSION} - {date}\n" in read("CHANGELOG.md")


def test_the_packages_readme_has_no_link_that_needs_the_repository() -> None:
    """Package indexes show it where there is no repository beside it."""
    made = runpy.run_path(str(ROOT / "hatch_build.py"))["with_whole_links"]
    targets = re.findall(r"\]\(([^)]+)\)", made(read("README.md")))
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert made("![a](b.png) [c](d.md#e) [f](#g)") == (
        "![a](https://github.com/autellix/autellix/raw/main/b.png) "
        "[c](https://github.com/autellix/autellix/blob/main/d.md#e) [f](#g)"
    )


def test_the_table_of_layers_is_the_linters() -> None:
    """docs/design/architecture.md shows the layers that `make check` enforces inside each package."""

    def row(package: str, layers: list[str]) -> str:
        shown = [", ".join(f"`{name}`" for name in layer.split(" | ")) for layer in layers]
        return f"| `{package}` | {' → '.join(shown)} |"

    expected = [
        row(package, contract["layers"])
        for contract in PROJECT["tool"]["importlinter"]["contracts"]
        for package in contract.get("containers", [])
        if contract["type"] == "layers"
    ]
    assert [line for line in read("docs/design/architecture.md").splitlines() if "→" in line] == expected
