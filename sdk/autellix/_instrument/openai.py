"""Annotates the calls of OpenAI and Anthropic clients: headers on each request, one call id for all retries.

Every request passes `BaseClient._build_request`: sync or async, streamed or raw, over any transport. The
class is patched, so clients built earlier are covered. `request` wraps all attempts of one call. The two
patches meet by `options.idempotency_key`, which these clients copy to retries and do not send. One generator
makes both packages, so the same patches fit both.
"""

from __future__ import annotations

from autellix._faults import safely
from autellix._ids import ids
from autellix._instrument import calls
from autellix._instrument.patches import before
from autellix._propagation import propagation
from autellix._receipts import FIELD, keep, keep_comment
from autellix._sessions.backends import KEY_HEADERS, backends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.calls import Destination
    from autellix._instrument.patches import Patches

CACHED_DESTINATION = "_autellix_destination"
"""The attribute of a client that caches where its address leads."""
KEY_NAMES = frozenset(name.decode() for name in KEY_HEADERS)


class InFlightCall:
    """One call with all its attempts."""

    __slots__ = ("destination", "has_clients_key", "headers", "key", "options")

    def __init__(self, key: str, options: Any, destination: Destination) -> None:
        self.key = key
        self.options = options
        self.destination = destination
        self.has_clients_key = not options.headers or not any(
            name.lower() in KEY_NAMES for name in options.headers
        )
        """Whether the call brings no key of its own."""
        self.headers = _headers_for(options)


class InFlightCalls:
    """The calls in flight, by idempotency key."""

    def __init__(self) -> None:
        self._by_key: dict[str, InFlightCall] = {}

    def begin(self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InFlightCall | None:
        """Record a call, to recognise its attempts; None if it does not go to a backend."""
        options = kwargs["options"] if "options" in kwargs else args[1]
        if not propagation.is_on or options.method.lower() != "post":
            return None
        destination = _destination_of_client(client)
        if destination is None:
            return None
        key = options.idempotency_key
        other = None if key is None else self._by_key.get(key)
        if other is not None and other.options is options:
            # The same call once more: another library's wrapper lies between two of ours.
            return None
        if key is None or other is not None:
            key = options.idempotency_key = ids.make("key")
        call = self._by_key[key] = InFlightCall(key, options, destination)
        return call

    def finish(self, call: InFlightCall | None) -> None:
        if call is not None:
            self._by_key.pop(call.key, None)

    def annotate(self, client: Any, options: Any, request: Any) -> None:
        """Add our headers to one attempt of a call, if it goes to a backend."""
        if not propagation.is_on or request.method != "POST":
            return
        call = self._by_key.get(options.idempotency_key)
        if "://" in options.url:
            # An absolute address overrides the client's own.
            destination = calls.destination_of(request.url, getattr(client, "_client", None))
        else:
            destination = _destination_of_client(client) if call is None else call.destination
        if destination is not None:
            headers = _headers_for(options) if call is None else call.headers
            is_clients = call is not None and call.has_clients_key
            calls.annotate(destination, headers, request, is_clients=is_clients)


in_flight = InFlightCalls()


def _headers_for(options: Any) -> calls.CallHeaders:
    return calls.CallHeaders(is_call=calls.makes_call(options.url))


def _destination_of_client(client: Any) -> Destination | None:
    """Return where a client's own address leads; cached, because reading the address is slow."""
    attributes = client.__dict__
    # What `base_url` returns: in openai's clients the property runs an import at each read.
    url = attributes.get("_base_url") or client.base_url
    cached = attributes.get(CACHED_DESTINATION)
    if cached is not None and cached[0] is url and cached[1] is backends.generation:
        found: Destination | None = cached[2]
        return found
    destination = calls.destination_of(url, getattr(client, "_client", None))
    attributes[CACHED_DESTINATION] = (url, backends.generation, destination)
    return destination


def _patch_build_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def _build_request(self: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, options, *args, **kwargs)
        safely(in_flight.annotate, self, options, request)
        return request

    return _build_request


def _patch_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = safely(in_flight.begin, self, args, kwargs)
        try:
            result = original(self, *args, **kwargs)
            if call is not None:
                _keep_receipt(result)
            return result
        except Exception as error:
            safely(_observe_error, self, error)
            raise
        finally:
            in_flight.finish(call)

    return request


def _patch_async_request(original: Callable[..., Any]) -> Callable[..., Any]:
    async def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = safely(in_flight.begin, self, args, kwargs)
        try:
            result = await original(self, *args, **kwargs)
            if call is not None:
                _keep_receipt(result)
            return result
        except Exception as error:
            safely(_observe_error, self, error)
            raise
        finally:
            in_flight.finish(call)

    return request


def _keep_receipt(result: Any) -> None:
    extra = getattr(result, "__pydantic_extra__", None)
    if extra and FIELD in extra:
        keep(extra[FIELD])


def _patch_decode(original: Callable[..., Any]) -> Callable[..., Any]:
    def decode(self: Any, line: str, *args: Any, **kwargs: Any) -> Any:
        if line[:1] == ":":
            keep_comment(line)
        return original(self, line, *args, **kwargs)

    return decode


def instrument_streams(patches: Patches, module: ModuleType) -> None:
    """Keep the receipts in streams, which the clients skip as comments."""
    patches.apply(module, "SSEDecoder.decode", _patch_decode)


def _observe_error(client: Any, error: Exception) -> None:
    response = getattr(error, "response", None)
    if response is not None:
        _observe(client, response)


def _observe(client: Any, response: Any, *_: object) -> None:
    calls.observe(response, getattr(client, "_client", None))


def _patch_process_response(original: Callable[..., Any]) -> Callable[..., Any]:
    def _process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "response" in kwargs:
            safely(_observe, self, kwargs["response"])
        # Of an async client this is a coroutine.
        return original(self, *args, **kwargs)

    return _process_response


def instrument_client(patches: Patches, module: ModuleType) -> None:
    """Patch the base classes of all clients in the package, as far as this version has them."""
    patches.apply(module, "BaseClient._build_request", _patch_build_request)
    patches.apply(module, "BaseClient._should_retry", before(_observe))
    for name, make in (("SyncAPIClient", _patch_request), ("AsyncAPIClient", _patch_async_request)):
        patches.apply(module, f"{name}.request", make)
        patches.apply(module, f"{name}._process_response", _patch_process_response)
        for subclass in _subclasses(getattr(module, name, None)):
            if "request" in vars(subclass):
                # Another library has given it a wrapper of the method that we have just replaced.
                patches.apply(subclass, "request", make)


def _subclasses(client: Any) -> list[type]:
    found: list[type] = list(client.__subclasses__()) if isinstance(client, type) else []
    return found + [deeper for subclass in found for deeper in _subclasses(subclass)]
