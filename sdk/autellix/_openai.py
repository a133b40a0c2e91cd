"""Annotates the calls of OpenAI and Anthropic clients: headers on each request, one call id over all retries.

`BaseClient._build_request` is the one method that every request passes, sync or async, streamed or raw,
whichever transport sends it; clients built earlier are covered since the class is patched. `request` wraps
the tries of one call. The two meet by `options.idempotency_key`, which these clients copy over retries and
do not send. Both packages are made by the same generator, so the same patches fit them.
"""

from __future__ import annotations

import functools

from autellix import _calls, _scope
from autellix._backends import FOREIGN, backends
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


BACKEND = "_autellix_backend"
"""The attribute of a client that remembers what its address is."""


class Begun:
    """A call in flight: how its tries are recognised, and whether its host is still to be waited for."""

    __slots__ = ("backend", "call", "key", "must_wait", "options")

    def __init__(self, key: str, options: Any, backend: Backend, *, must_wait: bool) -> None:
        self.key = key
        self.options = options
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
        if not _scope.is_on() or options.method.lower() != "post":
            return None
        backend = _backend_of_client(client)
        if backend is None:
            return None
        key = options.idempotency_key
        other = None if key is None else self._in_flight.get(key)
        if other is not None and other.options is options:
            # The same call again: somebody's wrapper lies between two of ours.
            return None
        if key is None or other is not None:
            key = options.idempotency_key = ids.make("key")
        must_wait = _calls.is_to_be_asked(backend)
        if must_wait:
            _calls.ask(backend, _authorization(client))
        begun = self._in_flight[key] = Begun(key, options, backend, must_wait=must_wait)
        return begun

    def finish(self, begun: Begun | None) -> None:
        """Forget a call that has its answer or its error."""
        if begun is not None:
            self._in_flight.pop(begun.key, None)

    def annotate(self, client: Any, options: Any, request: Any) -> None:
        """Add our headers to one try of a call, if it is one to a backend."""
        if not _scope.is_on() or request.method != "POST":
            return
        begun = self._in_flight.get(options.idempotency_key)
        if "://" in options.url:
            # An absolute address is judged by itself, whatever the client's own is.
            backend = _calls.backend_of(request.url)
        else:
            backend = _backend_of_client(client) if begun is None else begun.backend
        if backend is not None:
            _calls.annotate(backend, Call() if begun is None else begun.call, request)


def _backend_of_client(client: Any) -> Backend | None:
    """Return the backend of a client's own address; looked up once, for addresses are slow to read."""
    attributes = client.__dict__
    # What `base_url` returns: in openai's clients that runs an import at each look.
    url = attributes.get("_base_url") or client.base_url
    known = attributes.get(BACKEND)
    if known is not None and known[0] is url and known[1] is backends.origins:
        found: Backend | None = known[2]
        return found if found is not None and found.state != FOREIGN else None
    backend = _calls.backend_of(url)
    attributes[BACKEND] = (url, backends.origins, backend)
    return backend


def _authorization(client: Any) -> str | None:
    headers = getattr(client, "auth_headers", None)
    return headers.get("Authorization") if isinstance(headers, dict) else None


calls = Calls()


def _make_build_request(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _build_request(self: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, options, *args, **kwargs)
        safely(calls.annotate, self, options, request)
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
    for name, make in (("SyncAPIClient", _make_request), ("AsyncAPIClient", _make_async_request)):
        client = getattr(module, name, None)
        patches.apply(client, "request", make)
        for subclass in _subclasses(client):
            if "request" in vars(subclass):
                # Somebody who came first has given it a wrapper of the method that we have just replaced.
                patches.apply(subclass, "request", make)


def _subclasses(client: Any) -> list[type]:
    found: list[type] = list(client.__subclasses__()) if isinstance(client, type) else []
    return found + [deeper for subclass in found for deeper in _subclasses(subclass)]
