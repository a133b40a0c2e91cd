"""The gateway of `tests/gateway`, in front of a fake engine."""

from __future__ import annotations

from tests.gateway.conftest import listen, serve, tell, tenants_file, wait_until

__all__ = ["listen", "serve", "tell", "tenants_file", "wait_until"]
