"""The fast path of calls: their requests bypass the framework's layers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import GatewayError
from autellix_backend.gateway.http.errors import crash_response, error_response
from autellix_backend.gateway.requests import ClientGoneError


class CallPaths:
    """ASGI app that answers calls and forwards everything else."""

    def __init__(self, calls: Mapping[str, ASGIApp], others: ASGIApp) -> None:
        self._calls = calls
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors have the same form as on the framework's routes."""
        call = self._calls.get(scope["path"]) if scope["type"] == "http" else None
        if call is None or scope["method"] != "POST":
            await self._others(scope, receive, send)
            return
        try:
            await call(scope, receive, send)
        except ClientGoneError:
            return
        except GatewayError as error:
            await error_response(error, scope["path"])(scope, receive, send)
        except Exception as error:
            # The boundary of a request: the server logs it. An answer that has begun just ends.
            with contextlib.suppress(RuntimeError):
                await crash_response(error, scope["path"])(scope, receive, send)
            raise
