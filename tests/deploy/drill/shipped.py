"""What we ship, with the little that a drill changes: a small model on CPUs, and how many of each.

The chart is changed by its values, the compose file by variables and a file over it, the units by their
environment files, as an operator would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.deploy.chart import DEPLOY, NAMESPACE, render
from tests.deploy.drill import from_chart, from_compose, from_units
from tests.deploy.drill.images import Image, make_images
from tests.deploy.drill.pods import Container, Mount, Part, Pod, Probe, Volume

from autellix_backend.engines.vllm_command import device_arguments, environment_defaults
from autellix_lab.demo.model import DEMO_MODEL_NAME

SLOTS = 2
REPOSITORIES = {"autellix/autellix": Part.GATEWAY, "vllm/vllm-openai": Part.ENGINE, "redis": Part.REDIS}
MODEL_MOUNT = "/demo"
ENGINE_PORT, GATEWAY_PORT = 8000, 8080
SECRET = "of this drill alone, with spaces and 'quotes'"
PASSWORD = "of-this-drill-alone"


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
        # All three set it themselves.
        del found["VLLM_NO_USAGE_STATS"]
        return found


Played = tuple[Mapping[Part, Image], Sequence[Pod]]


def by_chart(size: Size, folder: Path) -> Played:
    """Render the chart."""
    values: dict[str, Any] = {
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
    return images, from_chart.pods_of(render(values), REPOSITORIES, images, NAMESPACE)


def by_compose(size: Size, folder: Path) -> Played:
    """Read the compose file, with variables as in `.env` and a file over it."""
    variables = from_units.environment_file((DEPLOY / "compose" / "env.example").read_text())
    variables |= {name: f"{name.lower()} {PASSWORD}" for name, value in variables.items() if not value}
    variables |= {
        "ENGINE_MODEL": MODEL_MOUNT,
        "AUTELLIX_SCHEDULER_POLICY": size.policy,
        "REDIS_PASSWORD": PASSWORD,
    }
    project = from_compose.read_compose(DEPLOY / "compose" / "compose.yaml", variables)
    services: dict[str, Any] = project["services"]
    names = [name for name in services if name.startswith("engine-")]
    pattern = services[names[0]]
    for name in names:
        del services[name]
    for number in range(size.engines):
        services[f"engine-{number}"] = {
            **pattern,
            "command": [*pattern["command"], "--served-model-name", DEMO_MODEL_NAME, *size.engine_arguments],
            "environment": {**pattern["environment"], **size.engine_environment},
            "volumes": [*pattern["volumes"], f"{size.model}:{MODEL_MOUNT}:ro"],
        }
    urls = " ".join(f"http://engine-{number}:{ENGINE_PORT}" for number in range(size.engines))
    services["gateway"]["environment"]["AUTELLIX_ENGINE_URLS"] = urls
    services["gateway"]["deploy"]["replicas"] = size.gateways
    images = make_images(folder)
    return images, from_compose.pods_of(project, REPOSITORIES, images)


def by_units(size: Size, folder: Path) -> Played:
    """Read the units, with environment files that an operator has edited; Redis is the operator's own."""
    units = DEPLOY / "systemd"
    scheduler = {
        "scheduler": {"policy": size.policy},
        "report_address": f"tcp://0.0.0.0:{ENGINE_PORT + 1000}",
    }
    engine = from_units.environment_file((units / "engine.env").read_text()) | {
        "ENGINE_MODEL": MODEL_MOUNT,
        "ENGINE_ADDITIONAL_CONFIG": json.dumps({"autellix": scheduler}),
        "ENGINE_ARGS": " ".join(["--served-model-name", DEMO_MODEL_NAME, *size.engine_arguments]),
        "VLLM_API_KEY": PASSWORD,
        "AUTELLIX_ENGINE_REPORT_SECRET": SECRET,
        **size.engine_environment,
    }
    urls = " ".join(f"http://engine{number}:{ENGINE_PORT}" for number in range(size.engines))
    gateway = from_units.environment_file((units / "gateway.env").read_text()) | {
        "AUTELLIX_ENGINE_URLS": urls,
        "AUTELLIX_ENGINE_API_KEY": PASSWORD,
        "AUTELLIX_ENGINE_REPORT_SECRET": SECRET,
        "AUTELLIX_STORE_URL": f"redis://:{PASSWORD}@redis.internal:6379/0",
        "AUTELLIX_GATEWAY_TOKEN_SECRET": SECRET,
        "AUTELLIX_SCHEDULER_POLICY": size.policy,
    }
    pods = [
        _with_model(
            from_units.pod_of(
                units / "autellix-engine@.service",
                Part.ENGINE,
                engine,
                name=f"engine{number}",
                port=ENGINE_PORT,
                path="/health",
            ),
            size.model,
        )
        for number in range(size.engines)
    ]
    pods += [
        from_units.pod_of(
            units / "autellix-gateway@.service",
            Part.GATEWAY,
            gateway,
            name=f"gateway{number}",
            port=GATEWAY_PORT,
            path="/readyz",
        )
        for number in range(size.gateways)
    ]
    return make_images(folder, has_virtual_environment=True), [*pods, _own_redis()]


def _with_model(pod: Pod, model: Path) -> Pod:
    """Put the model where the unit's sandbox shows it: not in /tmp."""
    mount = Mount(volume="demo", path=MODEL_MOUNT, is_read_only=True)
    return replace(
        pod,
        main=replace(pod.main, mounts=(*pod.main.mounts, mount)),
        volumes=(*pod.volumes, Volume(name="demo", source=str(model))),
    )


def _own_redis() -> Pod:
    return Pod(
        name="redis",
        part=Part.REDIS,
        main=Container(image=Part.REDIS, command=("redis-server", "--requirepass", PASSWORD, "--save", "")),
        probe=Probe(port=6379, path=None, period_s=1, failures=2),
        names=("redis.internal",),
    )


WAYS: Mapping[str, Callable[[Size, Path], Played]] = {
    "chart": by_chart,
    "compose": by_compose,
    "units": by_units,
}
