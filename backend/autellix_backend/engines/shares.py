"""The share of the machine for each of several replicas: its own cores or its own GPUs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from autellix_backend.settings import SettingsError

THREAD_BINDING = "VLLM_CPU_OMP_THREADS_BIND"
THREADS = "OMP_NUM_THREADS"
GPUS = "CUDA_VISIBLE_DEVICES"
DEVICE = re.compile(r"nvidia\d+")
_PARALLEL = {"--tensor-parallel-size": 0, "-tp": 0, "--pipeline-parallel-size": 1, "-pp": 1}


def core_shares(replicas: int, cores: Sequence[int], environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the variables of each of several CPU replicas, with equally many cores each.

    The user's own binding of cores is kept. Replicas with one core or less are not bound but compute in one
    thread each: their other processes need a core too, which the operating system finds.
    """
    each = len(cores) // replicas
    if THREAD_BINDING in environ or THREADS in environ:
        return [{} for _ in range(replicas)]
    if each <= 1:
        return [{THREADS: "1"} for _ in range(replicas)]
    groups = [cores[number * each : (number + 1) * each] for number in range(replicas)]
    return [{THREAD_BINDING: ",".join(map(str, group)), THREADS: str(each)} for group in groups]


def gpu_shares(replicas: int, gpus: Sequence[str], gpus_each: int) -> list[dict[str, str]]:
    """Return the variables of each of several GPU replicas.

    Raises:
        SettingsError: if there are not enough GPUs.
    """
    if replicas * gpus_each > len(gpus):
        problem = f"is {replicas}, which takes {replicas * gpus_each} GPUs, and {len(gpus)} are visible"
        raise SettingsError("engine.replicas", problem, f"at most {len(gpus) // gpus_each}")
    return [
        {GPUS: ",".join(gpus[number * gpus_each : (number + 1) * gpus_each])} for number in range(replicas)
    ]


def visible_gpus(environ: Mapping[str, str], device_folder: Path = Path("/dev")) -> list[str]:
    """Return the usable GPUs: those of CUDA_VISIBLE_DEVICES, else all of the machine."""
    if GPUS in environ:
        return [name for name in environ[GPUS].split(",") if name]
    count = sum(DEVICE.fullmatch(path.name) is not None for path in device_folder.iterdir())
    return [str(number) for number in range(count)]


def workers_of_one(extra_args: Sequence[str]) -> int:
    """Return the number of workers, each with its own device, that a replica's arguments ask for."""
    sizes = [1, 1]
    for argument, following in itertools.zip_longest(extra_args, extra_args[1:], fillvalue=""):
        name, is_joined, value = argument.replace("_", "-").partition("=")
        if name in _PARALLEL:
            size = value if is_joined else following
            sizes[_PARALLEL[name]] = int(size) if size.isdecimal() else 1
    return sizes[0] * sizes[1]
