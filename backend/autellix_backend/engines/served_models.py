"""Compares the models that engines serve: calls go to any of them, so all must serve the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from autellix_backend.engines.base import Engine, EngineError
from autellix_backend.engines.probe import read_models
from autellix_backend.engines.remote import RemoteEngine

TIMEOUT_S = 3.0


class NoSharedModelError(EngineError):
    """Engines serve no model in common."""

    def __init__(self, models: Mapping[str, Collection[str]]) -> None:
        lists = "; ".join(f"{engine} serves {_listed(names)}" for engine, names in models.items())
        super().__init__(f"engines: {lists}; expected a model that all serve, as calls go to any of them")


async def check_models(engines: Sequence[Engine], api_key: str | None) -> str | None:
    """Return which models not all of the engines serve, as a sentence; None if there are none.

    Engines that do not answer, or list no models, are left out.

    Raises:
        NoSharedModelError: if they serve none in common.
    """
    if len(engines) < 2 or all(engine.is_owned for engine in engines):
        return None
    lists = await asyncio.gather(*(_models_of(engine, api_key) for engine in engines))
    models = {engine.name: names for engine, names in zip(engines, lists, strict=True) if names}
    if not models:
        return None
    shared = frozenset.intersection(*map(frozenset, models.values()))
    if not shared:
        raise NoSharedModelError(models)
    others = frozenset[str]().union(*models.values()) - shared
    if not others:
        return None
    return f"not all engines serve {_listed(others)}: calls for it may go to one that does not"


async def _models_of(engine: Engine, api_key: str | None) -> frozenset[str]:
    if not engine.base_url:
        # A replica that has not started yet.
        return frozenset()
    authorization = engine.authorization if isinstance(engine, RemoteEngine) else None
    if api_key is not None:
        authorization = f"Bearer {api_key}"
    return await read_models(engine.base_url, TIMEOUT_S, authorization)


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
