"""What each request passes first: its length must be clear, and it must not come from another site's page.

A proxy in front may see the end of a request with two lengths elsewhere than the server.

A browser lets any page send a plain-text POST to any address; it carries the page's `Origin`. It also lets a
page read answers from its own host name, which the page's owner may point at this address (DNS rebinding);
such a request carries a foreign `Host`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autellix_backend.engines.probe import LOOP_HEADER, LOOP_MARK
from autellix_backend.gateway.errors import ForeignPageError, GatewayError, InvalidRequestError, LoopError
from autellix_backend.gateway.http.errors import VERSION_HEADER, error_response
from autellix_backend.gateway.requests import read_headers

MAX_HOST_CHARACTERS = 270
"""The longest DNS name, and a port."""
_OTHER_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site for pages of other origins."""


class RequestGuard:
    """ASGI middleware that refuses such requests, and adds the version to each response."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        is_local: bool,
        hosts: Collection[str],
        origins: Collection[str],
        is_page_path: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Wrap an app.

        Args:
            app: The app.
            is_local: Whether to refuse every `Host` that is neither a name of this machine nor in `hosts`.
                Only a gateway on loopback without keys needs that: browsers do not send keys by themselves,
                and a gateway in a cluster does not know its own names. A list of hosts asks for it too.
            hosts: Further names of the gateway, in lower case and without ports.
            origins: Origins of other sites whose pages may send requests.
            is_page_path: Returns whether a path belongs to our own pages, which other sites may link to.
        """
        self._app = app
        self._is_local = is_local
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)
        self._is_page_path = is_page_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, or answer it with 400 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), VERSION_HEADER]
            await send(message)

        if not scope["path"].startswith("/"):
            _take_origin_form(scope)
        error = self._refusal(read_headers(scope), scope["path"])
        app = self._app if error is None else error_response(error, scope["path"])
        await app(scope, receive, send_with_version)

    def _refusal(self, headers: Mapping[str, str], path: str) -> GatewayError | None:
        if headers.get(LOOP_HEADER) == LOOP_MARK:
            return LoopError()
        if {"content-length", "transfer-encoding"} <= headers.keys():
            # RFC 9112, 6.3
            problem = "Content-Length and Transfer-Encoding: are both there; expected one of them"
            return InvalidRequestError(problem, headers={"connection": "close"})
        foreign = self.foreign_page(headers, path)
        return None if foreign is None else ForeignPageError(foreign)

    def foreign_page(self, headers: Mapping[str, str], path: str = "") -> str | None:
        """Return the evidence that a request comes from another site's page; None without any.

        Args:
            headers: The request's, by their lower-case names.
            path: Its path; other sites may link to those of our pages.
        """
        host = headers.get("host", "")
        if (self._is_local or self._hosts) and host and not self._is_own(host):
            return f"Host: is {host!r}; expected a loopback address, localhost, or a name in gateway.hosts"
        origin = headers.get("origin")
        if origin is not None:
            if origin in self._origins or _authority(origin) == host.lower():
                return None
            return f"Origin: is {origin!r}; expected the gateway's own, {host!r}, or one in gateway.origins"
        if headers.get("sec-fetch-site") not in _OTHER_SITES:
            return None
        how = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
        if how == ("navigate", "document") and self._is_page_path(path):
            return None
        return "Sec-Fetch-Site: the request comes from another site's page"

    def _is_own(self, host: str) -> bool:
        return names_this_machine(host) or _hostname(host[:MAX_HOST_CHARACTERS]) in self._hosts


def _take_origin_form(scope: Scope) -> None:
    """Drop scheme and authority of a request's target, which RFC 9112, 3.2.2, lets clients send."""
    scope["path"] = "/" + scope["path"].partition("://")[2].partition("/")[2]
    scope["raw_path"] = b"/" + scope["raw_path"].partition(b"://")[2].partition(b"/")[2]


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
    name = _hostname(host)
    return name is not None and is_loopback(name)


def _hostname(host: str) -> str | None:
    """Return the name in a `Host`, in lower case and without its port; None if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _authority(origin: str) -> str | None:
    # A sandboxed page has the origin `null`.
    scheme, _, authority = origin.lower().partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme, "")
    return authority.removesuffix(default) if authority else None
