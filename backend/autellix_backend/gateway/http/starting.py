"""The gateway's answers while its engines start: pages that wait for them, and 503 for everything else."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import StartingError
from autellix_backend.gateway.http.errors import error_response

StartingPage = Callable[[Request], Response | None]


def starting_app(page: StartingPage | None) -> ASGIApp:
    """Return the app that answers until the gateway is ready; `page` answers the requests of browsers."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        shown = None if page is None else page(request)
        response = shown or error_response(StartingError(), request.url.path)
        await response(scope, receive, send)

    return answer
