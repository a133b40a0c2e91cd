"""The gateway's answers while its engines start: a page that waits for them, and 503 for everything else."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.console.http.page import FILES_PATH, PAGE_PATH, file_response, is_page_path
from autellix_backend.gateway.errors import StartingError
from autellix_backend.gateway.http.errors import error_response

STARTING_PAGE = "starting.html"


def starting_app(*, has_page: bool) -> ASGIApp:
    """Return the app that answers until the gateway is ready; `has_page` as for the gateway."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = _response(Request(scope), has_page=has_page)
        await response(scope, receive, send)

    return answer


def _response(request: Request, *, has_page: bool) -> Response:
    path = request.url.path
    if not has_page or request.method not in ("GET", "HEAD") or not is_page_path(path):
        return error_response(StartingError(), path)
    if path == PAGE_PATH:
        return file_response(STARTING_PAGE)
    if path.startswith(FILES_PATH):
        return file_response(path.removeprefix(FILES_PATH))
    return RedirectResponse(PAGE_PATH, HTTPStatus.TEMPORARY_REDIRECT)
