"""What a node plays, as plain data: pods with their containers, volumes and names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class Part(StrEnum):
    """What a pod is there for."""

    GATEWAY = "gateway"
    ENGINE = "engine"
    REDIS = "redis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A folder of a pod: empty at its start, with files, or one of the machine."""

    name: str
    source: str | None = None
    """The machine's folder."""
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Where a container has a volume."""

    volume: str
    path: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A process with the image that it expects."""

    image: Part
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None
    """None for the image's own."""
    is_read_only: bool = False
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How a node finds out that a pod is ready."""

    port: int
    path: str | None
    """None asks only for a connection."""
    period_s: float
    failures: int
    """So many in a row make it unready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Containers with one address."""

    name: str
    part: Part
    main: Container
    first: tuple[Container, ...] = ()
    """What runs to its end before."""
    volumes: tuple[Volume, ...] = ()
    probe: Probe
    ready_names: tuple[str, ...] = ()
    """Names that lead to it while it is ready."""
    names: tuple[str, ...] = ()
    """Names that always lead to it."""
    before_stop: tuple[str, ...] = ()
    """Runs inside before the signal to end."""
    grace_s: float = 30.0


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Put variables in place of `$(NAME)`, as Kubernetes does: unknown names stay as they are."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return REFERENCE.sub(value, text)


def of_part(pods: Sequence[Pod], part: Part) -> list[Pod]:
    """Return the pods that are there for one thing."""
    return [pod for pod in pods if pod.part is part]
