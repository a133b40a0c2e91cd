"""The short way of calls: no layer of the framework looks at a request for an endpoint that makes calls."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import GatewayError
from autellix_backend.gateway.http.errors import crash_response, error_response
from autellix_backend.gateway.requests import ClientGoneError


class CallApp(FastAPI):
    """A FastAPI app that hands calls to their endpoints behind its middleware, and routes all else."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: dict[str, ASGIApp] = {}
        """The endpoints that make calls, by their paths; set before the first request."""

    def build_middleware_stack(self) -> ASGIApp:
        """Put our middleware around both ways; the framework's own layers stay with its routes."""
        ours, self.user_middleware = self.user_middleware, []
        try:
            app: ASGIApp = CallPaths(self.calls, super().build_middleware_stack())
        finally:
            self.user_middleware = ours
        for middleware in reversed(ours):
            app = middleware.cls(app, *middleware.args, **middleware.kwargs)
        return app


class CallPaths:
    """ASGI app of the calls; everything else goes to the other app."""

    def __init__(self, calls: Mapping[str, ASGIApp], others: ASGIApp) -> None:
        self._calls = calls
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, its errors as the other routes answer theirs."""
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
            # A request's boundary: the server logs it. The answer may have begun, and ends there then.
            with contextlib.suppress(RuntimeError):
                await crash_response(error, scope["path"])(scope, receive, send)
            raise
