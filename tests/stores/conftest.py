"""Tables of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.redis_server import RedisServer
from tests.stores.tables import Table


@pytest.fixture(params=["memory", "redis", "fallback"])
async def table(request: pytest.FixtureRequest) -> AsyncIterator[Table]:
    """Yield an empty table, and close what a test opened."""
    url = None if request.param == "memory" else request.getfixturevalue("redis_server").url
    found = Table(request.param, url)
    yield found
    await found.close()


@pytest.fixture
def own_server(redis_program: str, tmp_path: Path) -> Iterator[RedisServer]:
    """Yield a server that the test starts, and may stop."""
    server = RedisServer(redis_program, tmp_path)
    yield server
    server.stop()


@pytest.fixture
async def own_table(own_server: RedisServer) -> AsyncIterator[Table]:
    """Yield the table of that server."""
    found = Table("fallback", own_server.url)
    yield found
    await found.close()
