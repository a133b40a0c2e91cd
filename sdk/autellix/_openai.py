"""Annotates the calls of OpenAI and Anthropic clients: headers on each request, one call id over all retries.

`BaseClient._build_request` is the one method that every request passes, sync or async, streamed or raw,
whichever transport sends it; clients built earlier are covered since the class is patched. `request` wraps
the tries of one call. The two meet by `options.idempotency_key`, which these clients copy over retries and
do not send. Both packages are made by the same generator, so the same patches fit them.
"""

from __future__ import annotations

import functools

from autellix import _calls
from autellix._calls import Call
from autellix._safely import safely
from autellix._strand import ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._backends import Backend
    from autellix._patching import Patches


class Begun:
    """A call in flight: how its tries are recognised, and whether its host is still to be waited for."""

    __slots__ = ("backend", "call", "key", "must_wait")

    def __init__(self, key: str, backend: Backend, *, must_wait: bool) -> None:
        self.key = key
        self.backend = backend
        self.must_wait = must_wait
        self.call = Call()


class Calls:
    """The calls in flight, by idempotency key."""

    def __init__(self) -> None:
        self._in_flight: dict[str, Begun] = {}

    def begin(self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun | None:
        """Recognise the tries of this call later; None if it is not for a backend."""
        options = kwargs["options"] if "options" in kwargs else args[1]
        if options.method.lower() != "post":
            return None
        backend = _calls.backend_of(client.base_url)
        if backend is None:
            return None
        key = options.idempotency_key
        if key is None or key in self._in_flight:
            key = options.idempotency_key = ids.make("key")
        must_wait = not backend.is_waited_for and _calls.ask(backend, _authorization(client))
        begun = self._in_flight[key] = Begun(key, backend, must_wait=must_wait)
        return begun

    def finish(self, begun: Begun | None) -> None:
        """Forget a call that has its answer or its error."""
        if begun is not None:
            self._in_flight.pop(begun.key, None)

    def annotate(self, options: Any, request: Any) -> None:
        """Add our headers to a request, if it is a call to a backend."""
        if request.method != "POST":
            return
        backend = _calls.backend_of(request.url)
        if backend is not None:
            begun = self._in_flight.get(options.idempotency_key)
            _calls.annotate(backend, request, None if begun is None else begun.call)


def _authorization(client: Any) -> str | None:
    headers = getattr(client, "auth_headers", None)
    return headers.get("Authorization") if isinstance(headers, dict) else None


calls = Calls()


def _make_build_request(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _build_request(self: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, options, *args, **kwargs)
        safely(calls.annotate, options, request)
        return request

    return _build_request


def _make_request(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = safely(calls.begin, self, args, kwargs)
        try:
            if begun is not None and begun.must_wait:
                _calls.wait_for_answer(begun.backend)
            return original(self, *args, **kwargs)
        finally:
            calls.finish(begun)

    return request


def _make_async_request(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = safely(calls.begin, self, args, kwargs)
        try:
            if begun is not None and begun.must_wait:
                await _calls.wait_for_answer_async(begun.backend)
            return await original(self, *args, **kwargs)
        finally:
            calls.finish(begun)

    return request


def instrument_client(patches: Patches, module: ModuleType) -> None:
    """Patch the base classes of all clients in the package, as far as this version has them."""
    patches.apply(getattr(module, "BaseClient", None), "_build_request", _make_build_request)
    patches.apply(getattr(module, "SyncAPIClient", None), "request", _make_request)
    patches.apply(getattr(module, "AsyncAPIClient", None), "request", _make_async_request)
