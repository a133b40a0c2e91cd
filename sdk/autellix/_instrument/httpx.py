"""Removes identities from redirects to other hosts in httpx; annotates bare clients where asked for."""

from __future__ import annotations

from autellix._faults import safely
from autellix._instrument import calls
from autellix._propagation import propagation
from autellix_wire.headers import CALL_ID
from autellix_wire.paths import API_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches
    from autellix._sessions.backends import Backend


def _called_backend(client: Any, request: Any) -> Backend | None:
    """Return the backend that a request calls; None if it is not a call, or is annotated already."""
    if not propagation.is_on or request.method != "POST" or CALL_ID in request.headers:
        return None
    backend = calls.backend_of(request.url, client)
    is_call = backend is not None and not request.url.path.startswith(backend.root + API_PREFIX)
    return backend if is_call else None


def _annotate(backend: Backend, request: Any) -> None:
    calls.annotate(backend, calls.CallHeaders(), request)


def _begin(client: Any, request: Any) -> Backend | None:
    backend = _called_backend(client, request)
    if backend is not None and backend.needs_wait:
        calls.probe(backend, request.headers)
    return backend


def _patch_send(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        backend = safely(_begin, self, request)
        if backend is None:
            return original(self, request, *args, **kwargs)
        if backend.needs_wait:
            calls.wait_for_probe(backend)
        safely(_annotate, backend, request)
        response = original(self, request, *args, **kwargs)
        safely(calls.observe, response)
        return response

    return send


def _patch_async_send(original: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        backend = safely(_begin, self, request)
        if backend is None:
            return await original(self, request, *args, **kwargs)
        if backend.needs_wait:
            await calls.wait_for_probe_async(backend)
        safely(_annotate, backend, request)
        response = await original(self, request, *args, **kwargs)
        safely(calls.observe, response)
        return response

    return send


def _patch_redirect_headers(original: Callable[..., Any]) -> Callable[..., Any]:
    def _redirect_headers(self: Any, request: Any, url: Any, method: str) -> Any:
        headers = original(self, request, url, method)
        safely(calls.drop_identity, headers, request.url, url)
        return headers

    return _redirect_headers


def instrument_redirects(patches: Patches, module: ModuleType) -> None:
    """Remove our headers from redirects to another host; httpx and httpx2 alike."""
    patches.apply(getattr(module, "BaseClient", None), "_redirect_headers", _patch_redirect_headers)


def instrument_httpx(patches: Patches, module: ModuleType) -> None:
    """Annotate every request of bare clients to a backend; httpx and httpx2 alike."""
    instrument_redirects(patches, module)
    patches.apply(getattr(module, "Client", None), "send", _patch_send)
    patches.apply(getattr(module, "AsyncClient", None), "send", _patch_async_send)
