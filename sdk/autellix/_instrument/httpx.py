"""Removes identities from redirects to other hosts in httpx; annotates bare clients where asked for."""

from __future__ import annotations

from autellix._faults import safely
from autellix._instrument import calls
from autellix._propagation import propagation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches


def _begin(client: Any, request: Any) -> bool:
    """Annotate a POST that goes to a backend; return whether the answer may tell something new."""
    if not propagation.is_on or calls.is_annotated(request):
        return False
    destination = calls.destination_of(request.url, client) if request.method == "POST" else None
    if destination is not None:
        calls.annotate(destination, calls.CallHeaders(is_call=calls.makes_call(request.url.path)), request)
    return True


def _patch_send(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        has_begun = safely(_begin, self, request)
        response = original(self, request, *args, **kwargs)
        if has_begun:
            safely(calls.observe, response, self)
        return response

    return send


def _patch_async_send(original: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        has_begun = safely(_begin, self, request)
        response = await original(self, request, *args, **kwargs)
        if has_begun:
            safely(calls.observe, response, self)
        return response

    return send


def _patch_redirect_headers(original: Callable[..., Any]) -> Callable[..., Any]:
    def _redirect_headers(self: Any, request: Any, url: Any, *args: Any, **kwargs: Any) -> Any:
        headers = original(self, request, url, *args, **kwargs)
        safely(calls.drop_identity, headers, request, url)
        return headers

    return _redirect_headers


def instrument_redirects(patches: Patches, module: ModuleType) -> None:
    """Remove our headers from redirects to another host; httpx and httpx2 alike."""
    if not patches.apply(module, "BaseClient._redirect_headers", _patch_redirect_headers):
        calls.unsafe_packages.add(module.__name__.partition(".")[0])
        patches.when_reverted(calls.unsafe_packages.clear)


def instrument_httpx(patches: Patches, module: ModuleType) -> None:
    """Annotate every request of bare clients to a backend; httpx and httpx2 alike."""
    instrument_redirects(patches, module)
    patches.apply(module, "Client.send", _patch_send)
    patches.apply(module, "AsyncClient.send", _patch_async_send)
