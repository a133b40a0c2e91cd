"""Pods of a compose file: each service's command line, variables, volumes, user and health."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.deploy.drill.images import Image
from tests.deploy.drill.pods import Container, Mount, Part, Pod, Probe, Volume

VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([-?])([^}]*))?\}")
PORTS = {Part.GATEWAY: (8000, "/readyz"), Part.ENGINE: (8000, "/health"), Part.REDIS: (6379, None)}
PROBE_PERIOD_S = 2.0
PROBE_FAILURES = 2
DURATION = re.compile(r"^(\d+)s$")

Service = dict[str, Any]


class MissingVariableError(Exception):
    """The file needs a variable that nobody has set."""


def read_compose(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return a compose file with the variables in their places.

    Raises:
        MissingVariableError: one is required, and not set.
    """
    return dict(_interpolated(yaml.safe_load(path.read_text()), variables))


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _interpolated(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [_interpolated(one, variables) for one in value]
    return VARIABLE.sub(lambda found: _value(found, variables), value) if isinstance(value, str) else value


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    name, kind, text = found.groups()
    if name is None:
        return "$"
    value = variables.get(name, "")
    if value or kind is None:
        return value
    if kind == "?":
        raise MissingVariableError(f"{name}: {text}")
    return str(text)


def pods_of(
    project: Mapping[str, Any], repositories: Mapping[str, Part], images: Mapping[Part, Image]
) -> list[Pod]:
    """Return a pod for each instance of each service that stays; what runs to its end goes first.

    The proxy is left out.

    Args:
        project: The compose file with its variables.
        repositories: Which image stands for which.
        images: What the images run by themselves.
    """
    services: dict[str, Service] = project["services"]
    found = []
    for name, service in services.items():
        if "restart" not in service or name == "proxy":
            continue
        part = _part(service, repositories)
        first = [
            services[other]
            for other, how in service.get("depends_on", {}).items()
            if how["condition"] == "service_completed_successfully"
        ]
        for number in range(service.get("deploy", {}).get("replicas", 1)):
            port, path = PORTS[part]
            found.append(
                Pod(
                    name=f"{project['name']}-{name}-{number + 1}",
                    part=part,
                    main=_container(service, repositories, images),
                    first=tuple(_container(each, repositories, images) for each in first),
                    volumes=_volumes([service, *first], project["volumes"]),
                    probe=Probe(port=port, path=path, period_s=PROBE_PERIOD_S, failures=PROBE_FAILURES),
                    names=(name,),
                    grace_s=_seconds(service.get("stop_grace_period", "10s")),
                )
            )
    return found


def _part(service: Service, repositories: Mapping[str, Part]) -> Part:
    return repositories[service["image"].rpartition(":")[0]]


def _container(service: Service, repositories: Mapping[str, Part], images: Mapping[Part, Image]) -> Container:
    part = _part(service, repositories)
    image = images[part]
    # A service's entrypoint also replaces the image's own arguments.
    command = service.get("command", () if "entrypoint" in service else image.command)
    return Container(
        image=part,
        command=(*service.get("entrypoint", image.entrypoint), *command),
        environment={**image.environment, **service.get("environment", {})},
        user=int(service["user"]) if "user" in service else image.user,
        is_read_only=service.get("read_only", False),
        mounts=tuple(
            Mount(volume=source, path=path, is_read_only=mode == "ro")
            for source, path, mode in map(_parts, service.get("volumes", ()))
        )
        + tuple(Mount(volume=_tmpfs(path), path=path) for path in service.get("tmpfs", ())),
    )


def _volumes(services: list[Service], named: Mapping[str, Any]) -> tuple[Volume, ...]:
    """Return all volumes of these; those with a name belong to root at first, and a tmpfs to everybody."""
    found: dict[str, Volume] = {}
    for service in services:
        for source, _, _ in map(_parts, service.get("volumes", ())):
            if source in named:
                found[source] = Volume(name=source, is_roots=True)
            else:
                found[source] = Volume(name=source, source=source)
        for path in service.get("tmpfs", ()):
            found[_tmpfs(path)] = Volume(name=_tmpfs(path))
    return tuple(found.values())


def _parts(volume: str) -> tuple[str, str, str]:
    source, path, *mode = volume.split(":")
    return source, path, mode[0] if mode else ""


def _tmpfs(path: str) -> str:
    return "tmpfs" + path.replace("/", "-")


def _seconds(text: str) -> float:
    found = DURATION.match(text)
    assert found is not None, text
    return float(found[1])
