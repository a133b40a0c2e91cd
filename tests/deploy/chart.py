"""The Helm chart as tests see it: rendered by Helm itself, and taken apart."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "autellix"
RELEASE, NAMESPACE = "ax", "agents"

Manifest = dict[str, Any]


def render(values: Mapping[str, Any] | None = None) -> list[Manifest]:
    """Return the objects that an installation with these values makes.

    Raises:
        helm_python.HelmError: if Helm refuses the values or a template fails.
    """
    helm = pytest.importorskip("helm_python", reason="Helm is not installed: `helm-python-sdk`")
    with helm.Chart.load(CHART) as chart:
        # Rendering alone does not look at the schema; an installation does.
        chart.validate_schema(dict(values or {}))
        texts = chart.render(dict(values or {}), name=RELEASE, namespace=NAMESPACE)
    pages = [text for name, text in sorted(texts.items()) if name.endswith(".yaml")]
    return [manifest for page in pages for manifest in yaml.safe_load_all(page) if manifest]


def the(manifests: list[Manifest], kind: str, component: str = "") -> Manifest:
    """Return the one object of this kind, and of this component if one is given."""
    [found] = [
        manifest
        for manifest in manifests
        if manifest["kind"] == kind
        and component in ("", manifest["metadata"]["labels"].get("app.kubernetes.io/component"))
    ]
    return found


def kinds(manifests: list[Manifest]) -> set[str]:
    """Return which kinds of objects there are."""
    return {str(manifest["kind"]) for manifest in manifests}


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Return the specs of all pods, by component."""
    return {
        manifest["metadata"]["labels"]["app.kubernetes.io/component"]: manifest["spec"]["template"]["spec"]
        for manifest in manifests
        if "template" in manifest.get("spec", {})
    }


def container(manifests: list[Manifest], component: str) -> Manifest:
    """Return the only container of a component."""
    [found] = pods(manifests)[component]["containers"]
    return copy.deepcopy(found)


def variables(manifests: list[Manifest], component: str) -> dict[str, Any]:
    """Return the variables of a component: their values, or where those come from."""
    listed = container(manifests, component)["env"]
    names = [item["name"] for item in listed]
    assert len(set(names)) == len(names), "a variable is given twice"
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in listed}
