"""How much host memory the engines that we start get for KV blocks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from autellix_backend.engines.vllm_command import GIB
from autellix_backend.settings import AUTO_GIB, Settings, SettingsError

AUTO_SHARE = 0.5
"""The share of the free memory that `auto` takes for all engines together: the processes of the engines, and
what else runs on the machine, need the rest."""
LEAST_GIB = 1.0
"""With less for each engine, `auto` takes none."""

_MEMORY = Path("/proc/meminfo")
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def with_host_memory(settings: Settings) -> Settings:
    """Return the settings with a size in GiB for each engine in the place of `auto`, or None for no memory.

    Raises:
        SettingsError: if the machine has less memory than the engines are to have, or if memory is set where
            we start no engine here.
    """
    engine = settings.engine
    gib = engine.kv_host_gib or None
    if gib is not None and engine.model is None:
        problem = "is given without engine.model"
        raise SettingsError("engine.kv_host_gib", problem, "a model: a running engine has its own settings")
    if gib == AUTO_GIB:
        if settings.ray.address is not None:
            problem = "is auto with Ray, which places engines on other machines"
            raise SettingsError("engine.kv_host_gib", problem, "a number")
        gib = auto_gib(engine.replicas)
    elif gib is not None and settings.ray.address is None:
        _check(float(gib), engine.replicas)
    return replace(settings, engine=replace(engine, kv_host_gib=gib))


def auto_gib(replicas: int) -> float | None:
    """Return the whole GiB that `auto` gives each engine, or None if too little memory is free."""
    gib = AUTO_SHARE * free_bytes() / GIB / replicas // 1
    return gib if gib >= LEAST_GIB else None


def free_bytes() -> float:
    """Return the memory that this process and its children may still take, by a container's limit too."""
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="ascii").splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    for limit, used in _CGROUPS:
        # `max` stands for no limit.
        if (
            limit.is_file()
            and used.is_file()
            and (text := limit.read_text(encoding="ascii").strip()) != "max"
        ):
            free = min(free, int(text) - int(used.read_text(encoding="ascii")))
    return max(0, free)


def _check(gib: float, replicas: int) -> None:
    physical_gib = _physical_bytes() / GIB
    if gib * replicas >= physical_gib:
        problem = f"is {gib:g} for each of {replicas} engines"
        raise SettingsError(
            "engine.kv_host_gib", problem, f"less than the machine's {physical_gib:.1f} GiB in all"
        )


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
