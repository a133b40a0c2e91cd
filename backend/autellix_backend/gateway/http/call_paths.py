"""The fast path of calls: their requests bypass the framework's layers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import ClientGoneError, GatewayError, UpgradeError
from autellix_backend.gateway.http.errors import crash_response, error_response


class CallPaths:
    """ASGI middleware that answers calls and forwards everything else."""

    def __init__(self, app: ASGIApp, calls: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors have the same form as on the framework's routes."""
        path = scope["path"] if scope["type"] == "http" else ""
        # vLLM redirects from a path with a slash at its end.
        call = self._calls.get(path) or self._calls.get(path.rstrip("/"))
        if call is None or scope["method"] != "POST":
            if call is not None and (b"upgrade", b"websocket") in scope["headers"]:
                # Codex tries a WebSocket first, and goes on at once after this answer only.
                await error_response(UpgradeError(), scope["path"])(scope, receive, send)
            else:
                await self._app(scope, receive, send)
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
