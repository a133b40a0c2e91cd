"""The configuration of a replica, from the settings."""

from __future__ import annotations

import importlib.metadata

from autellix_backend.engines.replica import ReplicaSpec
from autellix_backend.settings import EngineSettings, Settings, SettingsError

MODEL_GROUP = "autellix.models"
"""Entry points of generated models: function of a cache folder (or None), returns (folder, name)."""


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
