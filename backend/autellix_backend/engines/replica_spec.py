"""The configuration of a replica, and how it follows from the settings."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.settings import EngineSettings, Settings, SettingsError

MODEL_GROUP = "autellix.models"
"""Entry points of generated models: function of a cache folder (or None), returns (folder, name)."""
SHUTDOWN_TIMEOUT_S = 30.0
"""How long vLLM drains: the gateway has drained its own calls before, so this is for other clients' calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """The configuration of one replica."""

    model: str | Path
    log_path: Path
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    served_model_name: str | None = None
    max_num_seqs: int | None = None
    kv_host_gib: float | None = None
    """Host memory for KV blocks; a stock engine uses none."""
    kv_events: bool = False
    """Whether it publishes the changes of its KV cache."""
    extra_args: tuple[str, ...] = ()
    stock: bool = False
    """Start vLLM without our scheduler."""
    host: str = "127.0.0.1"
    """The address to listen on and to reach it by."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that override our own: its share of the machine."""
    startup_timeout_s: float = 900.0
    shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S
    """The time that running calls have once the server must end."""


def replica_spec(settings: Settings, *, name: str = "replica-0", stock: bool = False) -> ReplicaSpec:
    """Return a replica's configuration.

    A model that an installed package generates, such as `demo`, is written first if it is missing.

    Raises:
        SettingsError: if there is no model.
        EngineError: if such a model cannot be generated.
    """
    engine = settings.engine
    model, served_model_name = _model(engine)
    return ReplicaSpec(
        model=model,
        served_model_name=served_model_name,
        scheduler=settings.scheduler,
        max_num_seqs=engine.max_num_seqs,
        kv_host_gib=engine.kv_host_gib,
        kv_events=engine.kv_events,
        extra_args=engine.extra_args,
        log_path=engine.log_dir / f"{name}.log",
        startup_timeout_s=engine.startup_timeout_s,
        stock=stock,
    )


def _model(engine: EngineSettings) -> tuple[str, str | None]:
    if engine.model is None:
        raise SettingsError("engine.model", "is not given", "a model, 'demo', or an engine's address instead")
    for generated in importlib.metadata.entry_points(group=MODEL_GROUP, name=engine.model):
        directory, name = generated.load()(engine.state_dir)
        return str(directory), engine.served_model_name or name
    return engine.model, engine.served_model_name
