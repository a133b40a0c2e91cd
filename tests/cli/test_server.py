"""The HTTP server of one gateway."""

from __future__ import annotations

import httpx

from autellix_backend.cli.server import server_config


def test_clients_give_idle_connections_up_before_the_gateway_does() -> None:
    """Otherwise a call may be sent on a connection that the gateway is closing."""

    async def app(*_arguments: object) -> None:
        pass

    kept_s = server_config(app).timeout_keep_alive
    at_clients_s = httpx.Limits().keepalive_expiry
    assert at_clients_s is not None
    assert kept_s > 2 * at_clients_s
