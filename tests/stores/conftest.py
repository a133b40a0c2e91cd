"""Tables of every kind."""

from __future__ import annotations

import pytest
from tests.redis_server import RedisServer
from tests.stores.tables import Table


@pytest.fixture(params=["memory", "redis", "fallback"])
def table(request: pytest.FixtureRequest) -> Table:
    """Return an empty table."""
    if request.param == "memory":
        return Table("memory")
    server: RedisServer = request.getfixturevalue("redis_server")
    return Table(request.param, server.url)
