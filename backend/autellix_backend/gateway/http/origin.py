"""Protection against other sites' pages, whose scripts run in a browser that can reach the gateway.

A browser lets any page send a plain-text POST to any address; it carries the page's `Origin`. It also lets a
page read answers from its own host name, which the page's owner may point at this address (DNS rebinding);
such a request carries a foreign `Host`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import ForeignPageError
from autellix_backend.gateway.http.errors import error_response
from autellix_backend.gateway.http.page import is_page_path

_MARKS = frozenset({b"origin", b"host", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"})
MAX_HOST_CHARACTERS = 270
"""The longest DNS name, and a port."""
_OTHER_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site for pages of other origins."""


class SameOrigin:
    """ASGI middleware that refuses requests of other sites' pages."""

    def __init__(self, app: ASGIApp, *, is_local: bool) -> None:
        """With `is_local`, refuse every `Host` that is not a name or address of this machine.

        Only a gateway on loopback without keys needs that: browsers do not send keys by themselves, and a
        gateway in a cluster does not know its own names.
        """
        self._app = app
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, or answer it with 403."""
        if scope["type"] == "http":
            marks = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _MARKS}
            is_page = is_page_path(scope["path"])
            problem = foreign_page(marks, is_local=self._is_local, is_page=is_page)
            if problem is not None:
                await error_response(ForeignPageError(problem), scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def foreign_page(marks: Mapping[bytes, str], *, is_local: bool, is_page: bool = False) -> str | None:
    """Return the evidence that a request comes from another site's page; None without any.

    Args:
        marks: The headers Host, Origin and Sec-Fetch-* that the request has.
        is_local: Whether only names and addresses of this machine are its own.
        is_page: Whether the path is one of our page, which other sites may link to.
    """
    host = marks.get(b"host", "")
    if is_local and host and not names_this_machine(host):
        return f"Host: is {host!r}; expected a loopback address or localhost, where the gateway listens"
    origin = marks.get(b"origin")
    if origin is not None and _authority(origin) != host.lower():
        return f"Origin: is {origin!r}; expected the gateway's own, {host!r}"
    how = (marks.get(b"sec-fetch-mode"), marks.get(b"sec-fetch-dest"))
    is_link = is_page and how == ("navigate", "document")
    if origin is None and marks.get(b"sec-fetch-site") in _OTHER_SITES and not is_link:
        return "Sec-Fetch-Site: the request comes from another site's page"
    return None


def is_loopback(host: str) -> bool:
    """Return whether an address, or the name localhost, is this machine's loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    # A socket of both families gives addresses of the older one inside those of the newer.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def names_this_machine(host: str) -> bool:
    """Return whether a `Host` is a loopback address or localhost, with or without a port."""
    return len(host) <= MAX_HOST_CHARACTERS and _names_this_machine(host)


@lru_cache(256)
def _names_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name)


def _authority(origin: str) -> str | None:
    # A sandboxed page has the origin `null`.
    scheme, _, authority = origin.lower().partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme, "")
    return authority.removesuffix(default) if authority else None
