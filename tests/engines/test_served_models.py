"""Engines that serve different models."""

from __future__ import annotations

import pytest

from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.engines.served_models import NoSharedModelError, check_models
from autellix_lab.fakes.engine import FakeBehaviour, FakeEngine


async def compared(*lists: tuple[str, ...]) -> str | None:
    servers = [FakeEngine(FakeBehaviour(models=models)) for models in lists]
    for server in servers:
        await server.start()
    engines = [RemoteEngine(server.base_url, name=f"e{number}") for number, server in enumerate(servers)]
    # One that does not answer tells nothing.
    engines.append(RemoteEngine("http://127.0.0.1:1", name="gone"))
    try:
        return await check_models(engines, None)
    finally:
        for server in servers:
            await server.stop()


async def test_equal_lists_are_no_news() -> None:
    assert await compared(("m",), ("m",), ()) is None
    assert await compared() is None


async def test_what_not_all_serve_is_named() -> None:
    warning = await compared(("m", "b", "a"), ("m",))
    assert warning == "not all engines serve a, b: calls for it may go to one that does not"


async def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(NoSharedModelError, match=r"engines: e0 serves m; e1 serves a, b; expected a model"):
        await compared(("m",), ("b", "a"))
