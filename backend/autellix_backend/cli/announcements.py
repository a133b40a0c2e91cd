"""What `autellix serve` prints: its ready line, and what happens to its engines."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable

from autellix_backend.cli.notes import note
from autellix_backend.engines.base import Engine
from autellix_backend.engines.host_memory import auto_gib
from autellix_backend.engines.ray_replica import RayReplica
from autellix_backend.engines.replica import RANDOM_MODELS, VllmReplica
from autellix_backend.engines.report_client import LinkState
from autellix_backend.engines.supervisor import EngineChange, EngineState
from autellix_backend.engines.tool_parser import is_decided
from autellix_backend.engines.vllm_command import is_cpu_engine
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.settings import AUTO_GIB, EngineSettings, Settings

_WITHOUT = {
    EngineState.DOWN: "calls wait, or go to other engines",
    EngineState.RESTARTING: "restarting, calls wait",
    EngineState.FAILED: "calls get status 503",
}

logger = logging.getLogger(__name__)


def note_change(change: EngineChange) -> None:
    """Log an engine's change of state."""
    if change.state is EngineState.UP:
        logger.info("%s is up again", change.engine)
    else:
        logger.error("%s; %s", change.reason, _WITHOUT[change.state])


def note_reporting(handle: EngineHandle) -> None:
    """Print which of our features are active at an engine that others run, or that is in vLLM's own order."""
    if not handle.engine.is_owned or handle.link.runs_own_order:
        note(f"{handle.name}: {handle.reporting.text}")


def note_models(pool: EnginePool) -> None:
    """Print which engines serve what, if not all serve the same."""
    for group in pool.groups if len(pool.groups) > 1 else ():
        handles = [handle for handle in pool if handle.name in group]
        models = dict.fromkeys(name for handle in handles for name in handle.models)
        note(f"{', '.join(models)} at {', '.join(handle.name for handle in handles)}")


def note_host_memory(engine: EngineSettings, chosen_gib: float | str | None) -> None:
    """Print what `auto` gives each engine for KV blocks, or that engines on GPUs could have some."""
    if engine.kv_host_gib == AUTO_GIB:
        size = "no" if chosen_gib is None else f"{chosen_gib} GiB of"
        note(f"{size} host memory for the KV blocks of each engine (engine.kv_host_gib is auto)")
    elif engine.kv_host_gib is None and engine.model is not None and not is_cpu_engine():
        gib = auto_gib(engine.replicas)
        if gib is not None:
            note(
                "programs that return from tools would find their contexts in host memory: "
                f"--kv-host-gib auto would give each engine {gib:g} GiB"
            )


def note_tool_parser(settings: EngineSettings, engines: Iterable[Engine]) -> None:
    """Print which parser our replicas have for calls of tools, unless the user's arguments decide that."""
    replicas = (engine for engine in engines if isinstance(engine, VllmReplica | RayReplica))
    if is_decided(settings.extra_args) or (replica := next(replicas, None)) is None:
        return
    if replica.tool_parser is None:
        note(
            f"no parser is known for the tool calls of {settings.model}: tool_choice auto gets status 400 "
            "without --engine-args='--enable-auto-tool-choice --tool-call-parser NAME'"
        )
    else:
        note(
            f"vLLM's parser {replica.tool_parser} reads the tool calls of {settings.model}, by its chat "
            "template (--engine-args=--no-enable-auto-tool-choice turns this off)"
        )


def note_noise(engine: EngineSettings) -> None:
    """Print that a random model answers noise, which would look like a fault."""
    if engine.model in RANDOM_MODELS:
        note(f"the weights of {engine.model} are random: its answers are noise, its timing is real")


def ready_line(settings: Settings, pool: EnginePool, listener: socket.socket) -> str:
    """Return the line that names the models, the address and the policy in force."""
    what = ", ".join(dict.fromkeys(_described(handle.engine) for handle in pool))
    if len(pool) > 1:
        what += f" on {len(pool)} engines, {settings.balancer.name}"
    policy = _policy_in_force(settings, pool)
    return f"Autellix is ready: {what} at {root_url(listener)}/v1 (policy {policy}); Ctrl-C ends it"


def root_url(listener: socket.socket) -> str:
    """Return the address that a socket listens on."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _policy_in_force(settings: Settings, pool: EnginePool) -> str:
    if facts := [handle.link.first_facts for handle in pool if handle.sends_reports]:
        # Engines that others started may have another policy than this gateway.
        return ", ".join(dict.fromkeys(each.policy for each in facts if each is not None))
    links = [handle.reporting for handle in pool]
    if any(link.is_ordered_here for link in links):
        return f"{settings.scheduler.policy}, in the gateway"
    if any(link.problem or link.state == LinkState.CONNECTING for link in links):
        return "not known yet: no engine reports"
    return "none: the engine's own order applies"


def _described(engine: Engine) -> str:
    if isinstance(engine, VllmReplica):
        return engine.served_model_name or engine.model
    if isinstance(engine, RayReplica):
        return engine.model
    return engine.base_url
