"""Annotates calls that a program makes with a bare httpx client; only where the user has asked for it."""

from __future__ import annotations

import functools

from autellix import _calls, _scope
from autellix._safely import safely
from autellix_wire import CALL_ID
from autellix_wire.paths import API_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._backends import Backend
    from autellix._patching import Patches


def _call_backend(request: Any) -> Backend | None:
    """Return the backend that a request calls; None if it is no call, or has been annotated before."""
    if not _scope.is_on() or request.method != "POST" or CALL_ID in request.headers:
        return None
    backend = _calls.backend_of(request.url)
    if backend is None or request.url.path.startswith(backend.root + API_PREFIX):
        return None
    return backend


def _annotate(backend: Backend, request: Any) -> None:
    _calls.annotate(backend, _calls.Call(), request)


def _begin(request: Any) -> tuple[Backend | None, bool]:
    backend = _call_backend(request)
    must_wait = backend is not None and _calls.is_to_be_asked(backend)
    if backend is not None and must_wait:
        _calls.ask(backend, request.headers.get("Authorization"))
    return backend, must_wait


def _make_send(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        backend, must_wait = safely(_begin, request) or (None, False)
        if backend is not None:
            if must_wait:
                _calls.wait_for_answer(backend)
            safely(_annotate, backend, request)
        return original(self, request, *args, **kwargs)

    return send


def _make_async_send(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        backend, must_wait = safely(_begin, request) or (None, False)
        if backend is not None:
            if must_wait:
                await _calls.wait_for_answer_async(backend)
            safely(_annotate, backend, request)
        return await original(self, request, *args, **kwargs)

    return send


def instrument_httpx(patches: Patches, module: ModuleType) -> None:
    """Annotate every request of bare clients that goes to a backend; httpx and httpx2 alike."""
    patches.apply(getattr(module, "Client", None), "send", _make_send)
    patches.apply(getattr(module, "AsyncClient", None), "send", _make_async_send)
