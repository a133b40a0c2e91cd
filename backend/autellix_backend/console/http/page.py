"""The live page's files. They hold no data: the page reads it from the API with the visitor's key."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from autellix_backend.console.page.assets import INDEX, assets
from autellix_backend.console.page.headers import PAGE_HEADERS
from autellix_backend.gateway.errors import NotFoundError
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.settings import GatewaySettings

ROOT = "/autellix"
PAGE_PATH = ROOT + "/"
FILES_PATH = PAGE_PATH + "page/"
STARTING_PAGE = "starting.html"
router = APIRouter(tags=["page"], responses=refusals(500))
_PUBLIC: dict[str, Any] = {"security": []}


class _AnyFile(Response):
    """A file of the page."""

    media_type = "text/javascript"


def is_page_path(path: str) -> bool:
    """Return whether a path belongs to the page, whose files need no key."""
    return path in ("/", ROOT, PAGE_PATH) or path.startswith(FILES_PATH)


def has_page(gateway: GatewaySettings, *, has_keys: bool, is_loopback: bool) -> bool:
    """Return whether a gateway serves the page; `auto` does not where anyone on the network could read it."""
    is_wanted = gateway.page == "on" or (gateway.page == "auto" and (has_keys or is_loopback))
    return gateway.console and is_wanted


@router.get("/", status_code=307, response_class=RedirectResponse, openapi_extra=_PUBLIC)
@router.get(ROOT, status_code=307, response_class=RedirectResponse, openapi_extra=_PUBLIC)
async def redirect_to_page() -> Response:
    """Send a browser to the live page."""
    # Relative, so that it works from both paths and behind a proxy that adds a prefix.
    return RedirectResponse("autellix/", headers=PAGE_HEADERS)


@router.get(PAGE_PATH, response_class=HTMLResponse, openapi_extra=_PUBLIC)
async def show_page() -> Response:
    """Return the live page."""
    return file_response(INDEX)


@router.get(
    FILES_PATH + "{name:path}", response_class=_AnyFile, responses=refusals(404), openapi_extra=_PUBLIC
)
async def show_file(name: str) -> Response:
    """Return a file of the live page: a script, a style sheet or a picture."""
    if name not in assets() or name == INDEX:
        raise NotFoundError(f"the page has no file {name!r}", param="name")
    return file_response(name)


def file_response(name: str) -> Response:
    """Return a file of the page, or a 404, with headers that keep out other sites and foreign scripts."""
    asset = assets().get(name)
    if asset is None:
        return Response(status_code=404, headers=PAGE_HEADERS)
    return Response(asset.content, media_type=asset.media_type, headers=PAGE_HEADERS)


def starting_page(request: Request) -> Response | None:
    """Return the page that waits while the engines start, or a file of it; None for requests of others."""
    path = request.url.path
    if request.method not in ("GET", "HEAD") or not is_page_path(path):
        return None
    if path == PAGE_PATH:
        return file_response(STARTING_PAGE)
    if path.startswith(FILES_PATH):
        return file_response(path.removeprefix(FILES_PATH))
    return RedirectResponse(PAGE_PATH, HTTPStatus.TEMPORARY_REDIRECT)
