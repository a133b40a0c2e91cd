"""Creates the engines that the settings describe."""

from __future__ import annotations

import asyncio
import os
from urllib.parse import urlsplit

from autellix_backend.engines.base import Engine, EngineKind
from autellix_backend.engines.host_memory import with_host_memory
from autellix_backend.engines.ray_replica import RayReplica
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.engines.shares import core_shares, gpu_shares, visible_gpus, workers_of_one
from autellix_backend.engines.vllm_command import is_cpu_engine
from autellix_backend.settings import (
    AUTO_KIND,
    MAX_PORT,
    EngineSettings,
    Settings,
    SettingsError,
    child_environment,
)

HTTP_PORT, HTTPS_PORT = 80, 443
REPORT_PORT_OFFSET = 1000
"""An engine reports this far above the port of its address: its neighbours of one host are nearer."""


def make_engines(settings: Settings) -> list[Engine]:
    """Return all engines, not yet started: the replicas of the model, then the running ones.

    Raises:
        SettingsError: if there is neither a model nor a URL, the machine has too few GPUs or less host memory
            than KV blocks are to have, host memory is set for remote engines only, or Ray is to place engines
            of no model.
        EngineError: if the demo model cannot be generated.
    """
    settings = with_host_memory(settings)
    engine = settings.engine
    engines: list[Engine] = []
    if settings.ray.address is not None:
        engines += _ray_replicas(settings)
    elif engine.model is not None and engine.replicas > 1:
        engines += _replicas(settings)
    elif engine.model is not None or not engine.urls:
        engines.append(VllmReplica(settings))
    remotes = [make_remote(engine, url, name=f"remote-{number}") for number, url in enumerate(engine.urls)]
    return [*engines, *remotes]


def make_remote(
    settings: EngineSettings, url: str, *, name: str, kind: str | None = None, report_port: int | None = None
) -> RemoteEngine:
    """Return a running engine by its address.

    Args:
        settings: The settings of engines.
        url: The address.
        name: The engine's name.
        kind: What runs there; None for that of the settings.
        report_port: Where its scheduler reports; None for the usual distance above the port of the address.

    Raises:
        SettingsError: if the address is none.
    """
    EngineSettings(urls=(url,))
    kind = settings.kind if kind is None else kind
    return RemoteEngine(
        url,
        name=name,
        kind=None if kind == AUTO_KIND else EngineKind(kind),
        report_port=report_port or _report_port(url),
    )


def _report_port(url: str) -> int | None:
    """Return the port at which an engine with our scheduler reports, by the port of its address."""
    parts = urlsplit(url)
    try:
        port = parts.port or (HTTPS_PORT if parts.scheme == "https" else HTTP_PORT)
    except ValueError:
        # The address is wrong, as its first use will show.
        return None
    return port + REPORT_PORT_OFFSET if port + REPORT_PORT_OFFSET <= MAX_PORT else None


def _replicas(settings: Settings) -> list[Engine]:
    count, extra_args = settings.engine.replicas, settings.engine.extra_args
    environ = child_environment({})
    if is_cpu_engine():
        shares = core_shares(count, sorted(os.sched_getaffinity(0)), environ)
    else:
        shares = gpu_shares(count, visible_gpus(environ), workers_of_one(extra_args))
    return [
        VllmReplica(settings, name=f"replica-{number}", environment=share)
        for number, share in enumerate(shares)
    ]


def _ray_replicas(settings: Settings) -> list[Engine]:
    engine = settings.engine
    if engine.model is None:
        raise SettingsError(
            "ray.address", "is given without engine.model", "the model of the engines to place"
        )
    connecting = asyncio.Lock()
    return [RayReplica(settings, connecting, name=f"replica-{number}") for number in range(engine.replicas)]
