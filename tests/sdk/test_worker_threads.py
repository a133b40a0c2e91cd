"""What asgiref and FastAPI run in other threads; each test needs its library, and is skipped without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import autellix


def name_here() -> str | None:
    return autellix.current().name


@pytest.fixture
def asgiref(sdk: None) -> Any:
    return pytest.importorskip("asgiref.sync")


@pytest.mark.parametrize("is_sensitive", [True, False])
def test_sync_to_async_under_a_sync_server(asgiref: Any, is_sensitive: bool) -> None:
    """As Django does it for an async view under WSGI: synchronous code goes back to the server's thread."""

    async def view() -> tuple[str | None, str | None]:
        async with autellix.program("a"):
            inside = await asgiref.sync_to_async(name_here, thread_sensitive=is_sensitive)()
        return inside, await asgiref.sync_to_async(name_here, thread_sensitive=is_sensitive)()

    assert asgiref.async_to_sync(view)() == ("a", None)
    assert name_here() is None


async def test_sync_to_async_under_an_async_server(asgiref: Any) -> None:
    async with autellix.program("a"):
        assert await asgiref.sync_to_async(name_here)() == "a"
    assert await asgiref.sync_to_async(name_here)() is None


def opened() -> Iterator[str]:
    with autellix.program("outer"), autellix.program("dependency"):
        yield "value"


def failing() -> Iterator[None]:
    with autellix.program("dependency"):
        raise LookupError("no such thing")
        yield


@pytest.fixture
def client(sdk: None) -> Any:
    fastapi = pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    app = fastapi.FastAPI()
    depends, fails = fastapi.Depends(opened), fastapi.Depends(failing)

    def sync_endpoint(value: str = depends) -> list[str | None]:
        return [value, name_here()]

    async def async_endpoint(value: str = depends) -> list[str | None]:
        return [value, name_here()]

    async def other() -> list[str | None]:
        return [name_here()]

    async def unreached(value: str = fails) -> None:
        pass

    for path, endpoint in (
        ("/sync", sync_endpoint),
        ("/async", async_endpoint),
        ("/none", other),
        ("/fails", unreached),
    ):
        app.get(path)(endpoint)
    with testclient.TestClient(app) as client:
        yield client


def test_scope_of_a_sync_dependency_holds_in_the_endpoint(client: Any) -> None:
    for _ in range(2):
        assert client.get("/sync").json() == ["value", "dependency"]
        assert client.get("/async").json() == ["value", "dependency"]
        assert client.get("/none").json() == ["GET /none"]


def test_error_of_a_sync_dependency_passes(client: Any) -> None:
    with pytest.raises(LookupError, match="no such thing"):
        client.get("/fails")
    assert client.get("/none").json() == ["GET /none"]
