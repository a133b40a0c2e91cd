"""The commands of routers, gateways and schedulers of others, for benchmarks beside ours.

A peer is named by the program of its environment, or by a checkout: `vllm-router`, `litellm` (with its extra
`proxy`), `sglang-router`, `smg`, a folder with ThunderAgent's code, or AgentInfer's `vllm`. That is an engine
itself, so its environment has vLLM, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autellix_backend.engines.replica import free_port

LOCAL = "127.0.0.1"
THUNDER_INTERVAL_S = 0.1
"""Of its scheduler: at its own default of 5 s, programs of 10 s would only wait."""
PROGRAM_SCHEDULING: dict[str, Any] = {
    "global_queue": True,
    "metrics_interval_seconds": 0.1,
    "prefill_cost_model": {
        "intercept_seconds": 0.013,
        "linear_seconds_per_1k_tokens": 0.015,
        "quadratic_seconds_per_1k_tokens_squared": 0.013,
        "decode_throughput_alpha": 0.15,
    },
    "decode_throughput_model": {
        "fixed_step_seconds": 0.0028,
        "batch_step_seconds_per_request": 8e-5,
        "context_step_seconds_per_token": 4e-7,
    },
}
"""Of vLLM's router: what its documentation recommends, and the demo engine's costs, fitted on two cores."""
AGENTINFER = "AgentInfer"
AGENTINFER_OWN = "AgentInfer, its own constants"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A program in front of engines."""

    name: str
    command: Sequence[str]
    port: int
    health: str = "/health"
    """The path that answers once it is ready."""
    environment: Mapping[str, str] = field(default_factory=dict)


def name_of(program: Path) -> str:
    """Return a peer's name."""
    known = {"litellm": "LiteLLM", "vllm": AGENTINFER}
    return "ThunderAgent" if program.is_dir() else known.get(program.name, program.name)


def agentinfer_settings(
    prefill: Mapping[str, float], decode: Mapping[str, float], interval_s: float
) -> dict[str, Any]:
    """Return AgentInfer's settings for an engine, where it would have constants of its own.

    Args:
        prefill: The prefill cost model of `PROGRAM_SCHEDULING`, whose terms are AgentInfer's, too.
        decode: The same of a step.
        interval_s: Between two of its checks.
    """
    linear, quadratic = "linear_seconds_per_1k_tokens", "quadratic_seconds_per_1k_tokens_squared"
    costs = {f"ttl_prefill_model_{name}": prefill[name] for name in ("intercept_seconds", linear, quadratic)}
    costs["decode_step_fixed_seconds"] = decode["fixed_step_seconds"]
    costs["decode_step_seconds_per_request"] = decode["batch_step_seconds_per_request"]
    costs["decode_step_seconds_per_context_token"] = decode["context_step_seconds_per_token"]
    return {"schedule_interval_seconds": interval_s, "progress_ttl": costs}


AGENTINFER_FITTED = agentinfer_settings(
    PROGRAM_SCHEDULING["prefill_cost_model"],
    PROGRAM_SCHEDULING["decode_throughput_model"],
    interval_s=0.1,
)


def agentinfer(program: Path, engine: Sequence[str], port: int, *, is_fitted: bool) -> Peer:
    """Return a vLLM server with AgentInfer's scheduler and middleware, as `--agentinfer` adds them.

    `vllm serve` itself fails with vLLM's build for CPUs, on which async scheduling is off.

    Args:
        program: The `vllm` of an environment that has both.
        engine: Arguments of the server.
        port: The port to serve at.
        is_fitted: Whether to set what depends on an engine's speed, and not keep its own constants.
    """
    core = "agentinfer.agentcache.core"
    command = [str(program.with_name("python")), "-m", "vllm.entrypoints.openai.api_server", *engine]
    command += ["--port", str(port), "--no-async-scheduling"]
    command += ["--scheduler-cls", f"{core}.scheduler.AgentCacheSyncSchedulerBridge"]
    for name in ("AgentCacheIdentityMiddleware", "AgentCacheLifecycleMiddleware"):
        command += ["--middleware", f"{core}.api_adapter.{name}"]
    settings = AGENTINFER_FITTED if is_fitted else {}
    command += ["--additional-config", json.dumps({"agentcache": settings})]
    return Peer(
        name=AGENTINFER if is_fitted else AGENTINFER_OWN,
        command=command,
        port=port,
        environment={"AGENTCACHE_VLLM_LIFECYCLE_SOCKET": lifecycle_socket(port)},
    )


def lifecycle_socket(port: int) -> str:
    """Return the path at which AgentInfer's engine at a port learns what becomes of programs."""
    return str(Path(tempfile.gettempdir()) / f"agentinfer-{port}.sock")


def peer(
    program: Path, urls: Sequence[str], port: int, model: str, folder: Path, *, kv_tokens: int | None = None
) -> Peer:
    """Return a peer that serves at a port of this machine in front of engines.

    Args:
        program: Its program or checkout.
        urls: The engines' addresses.
        port: The port to serve at.
        model: The engines' model.
        folder: For files that it needs.
        kv_tokens: The KV memory of each engine; vLLM's router then schedules programs.
    """
    name, address = name_of(program), ["--host", LOCAL, "--port", str(port)]
    if name == "ThunderAgent":
        command = [
            sys.executable,
            "-m",
            "ThunderAgent",
            *address,
            "--router",
            "tr" if kv_tokens is not None else "default",
            "--backends",
            ",".join(urls),
        ]
        command += ["--scheduler-interval", str(THUNDER_INTERVAL_S)]
        return Peer(name=name, port=port, command=command, environment={"PYTHONPATH": str(program)})
    if name == "LiteLLM":
        config = folder / "litellm.json"
        config.write_text(json.dumps(litellm_config(urls, model)), encoding="utf-8")
        return Peer(
            name=name,
            port=port,
            command=[str(program), "--config", str(config), "--telemetry", "False", *address],
            health="/health/liveliness",
            environment={
                # It asks the network at its start otherwise, and for a key.
                "LITELLM_LOCAL_MODEL_COST_MAP": "true",
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            },
        )
    command = [str(program)] if name == "vllm-router" else [str(program), "launch"]
    # By default all take the same port for their metrics.
    command += ["--worker-urls", *urls, *address, "--prometheus-port", str(free_port(LOCAL))]
    if name == "vllm-router" and kv_tokens is not None:
        scheduling = json.dumps(PROGRAM_SCHEDULING | {"token_capacity_per_target": kv_tokens})
        command += ["--enable-program-scheduling", "--program-scheduling-config-json", scheduling]
    return Peer(name=name, port=port, command=command, health="/readiness")


def litellm_config(urls: Sequence[str], model: str) -> dict[str, object]:
    """Return LiteLLM's configuration: a session stays at its engine."""
    targets = [{"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "api_key": "none"} for url in urls]
    return {
        "model_list": [{"model_name": model, "litellm_params": target} for target in targets],
        "router_settings": {"optional_pre_call_checks": ["session_affinity"]},
    }
