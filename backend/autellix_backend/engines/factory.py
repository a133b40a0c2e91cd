"""Makes the engine that the settings describe."""

from __future__ import annotations

from autellix_backend.engines.base import Engine
from autellix_backend.engines.demo_model import (
    DEMO_ALIASES,
    DEMO_MODEL_NAME,
    build_demo_model,
    demo_model_directory,
)
from autellix_backend.engines.kind import EngineKind
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.engines.replica import ReplicaSpec, VllmReplica
from autellix_backend.settings import AUTO_KIND, EngineSettings, Settings, SettingsError


def make_engine(settings: Settings, *, name: str = "replica-0", stock: bool = False) -> Engine:
    """Return the engine, not yet started: a remote one if there is a URL, else a replica of the model.

    For the model `demo` the generated model is written first, if it is not there.

    Raises:
        SettingsError: if there is neither or both.
        EngineError: if the demo model cannot be generated.
    """
    engine = settings.engine
    if engine.url is not None and engine.model is not None:
        raise SettingsError("engine.url", "is given beside engine.model", "one of the two")
    if engine.url is not None:
        kind = None if engine.kind == AUTO_KIND else EngineKind(engine.kind)
        return RemoteEngine(engine.url, kind=kind)
    return VllmReplica(replica_spec(settings, name=name, stock=stock), name=name)


def replica_spec(settings: Settings, *, name: str = "replica-0", stock: bool = False) -> ReplicaSpec:
    """Return what the settings say of a replica."""
    engine = settings.engine
    model, served_model_name = _model(engine)
    return ReplicaSpec(
        model=model,
        served_model_name=served_model_name,
        scheduler=settings.scheduler,
        max_num_seqs=engine.max_num_seqs,
        extra_args=engine.extra_args,
        log_path=engine.log_dir / f"{name}.log",
        startup_timeout_s=engine.startup_timeout_s,
        shutdown_timeout_s=engine.shutdown_timeout_s,
        stock=stock,
    )


def _model(engine: EngineSettings) -> tuple[str, str | None]:
    if engine.model is None:
        raise SettingsError("engine.model", "is not given", "a model, 'demo', or an engine's address instead")
    if engine.model not in DEMO_ALIASES:
        return engine.model, engine.served_model_name
    directory = build_demo_model(demo_model_directory(engine.state_dir))
    return str(directory), engine.served_model_name or DEMO_MODEL_NAME
