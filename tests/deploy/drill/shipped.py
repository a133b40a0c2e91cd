"""The chart, with the values that a drill changes: a small model on CPUs, and how many of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.chart import NAMESPACE, render
from tests.deploy.drill.from_chart import pods_of
from tests.deploy.drill.images import Image, make_images
from tests.deploy.drill.pods import Part, Pod

from autellix_backend.engines.vllm_command import device_arguments, environment_defaults
from autellix_lab.demo.model import DEMO_MODEL_NAME

SLOTS = 2
REPOSITORIES = {"autellix/autellix": Part.GATEWAY, "vllm/vllm-openai": Part.ENGINE, "redis": Part.REDIS}
MODEL_MOUNT = "/demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many of each, and what they serve."""

    engines: int
    gateways: int
    policy: str
    model: Path

    @property
    def engine_arguments(self) -> list[str]:
        """What the backend on one machine gives its engines for a CPU, and a small batch."""
        of_cpu = device_arguments(str(self.model), (), self.engine_environment, is_cpu=True)
        return [*of_cpu, f"--max-num-seqs={SLOTS}"]

    @property
    def engine_environment(self) -> dict[str, str]:
        """What a CPU wants of vLLM's variables."""
        found = environment_defaults(str(self.model), is_cpu=True)
        # The chart sets it itself.
        del found["VLLM_NO_USAGE_STATS"]
        return found


def by_chart(size: Size, folder: Path) -> tuple[Mapping[Part, Image], list[Pod]]:
    """Render the chart; return images and pods."""
    values: dict[str, Any] = {
        "tenants": {"open": True},
        "gateway": {"replicas": size.gateways},
        "scheduler": {"policy": size.policy},
        "engine": {
            "replicas": size.engines,
            "model": MODEL_MOUNT,
            "servedModelName": DEMO_MODEL_NAME,
            "extraArgs": size.engine_arguments,
            "extraEnv": [{"name": name, "value": value} for name, value in size.engine_environment.items()],
            "extraVolumes": [{"name": "demo", "hostPath": {"path": str(size.model)}}],
            "extraVolumeMounts": [{"name": "demo", "mountPath": MODEL_MOUNT, "readOnly": True}],
        },
    }
    images = make_images(folder)
    return images, pods_of(render(values), REPOSITORIES, images, NAMESPACE)
