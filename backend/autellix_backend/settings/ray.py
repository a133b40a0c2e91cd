"""Where engines run that a Ray cluster places."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autellix_backend.settings.base import check, check_positive

ANY_CLUSTER = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """The engines of the model as actors of a Ray cluster, on whichever of its nodes have room."""

    address: str | None = None
    """`auto` for the cluster that this machine is a node of, or HOST:PORT of its head; None uses no Ray."""
    cpus: float = 1.0
    """What each engine takes of a node's CPUs; an engine on CPUs computes in as many threads."""
    gpus: float | None = None
    """What each engine takes of a node's GPUs; None: as its parallel sizes say, none for the CPU build."""
    placement_timeout_s: float = 60.0
    """How long an engine may wait for a node with room."""

    def __post_init__(self) -> None:
        is_address = self.address in (None, ANY_CLUSTER) or re.fullmatch(r"[^/\s]+:\d+", self.address or "")
        expected = f"{ANY_CLUSTER}, or HOST:PORT of the cluster's head"
        check(bool(is_address), "ray.address", f"is {self.address!r}", expected)
        check_positive("ray", self, "cpus", zero_allowed=True)
        if self.gpus is not None:
            check_positive("ray", self, "gpus", zero_allowed=True)
        check_positive("ray", self, "placement_timeout_s")
