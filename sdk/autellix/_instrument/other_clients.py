"""Annotates the calls that DSPy and litellm make with HTTP clients of their own."""

from __future__ import annotations

from autellix._faults import safely
from autellix._instrument import calls
from autellix._instrument.patches import before
from autellix._propagation import propagation
from autellix._sessions.backends import KEY_HEADERS
from autellix_wire.headers import CALL_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.calls import CallHeaders
    from autellix._instrument.patches import Patches
    from autellix._sessions.backends import Credentials


def _credentials(headers: Iterable[tuple[str, str]]) -> Credentials | None:
    """Return the keys in a call's headers; None if it is annotated already."""
    present = {name.lower(): value for name, value in headers if isinstance(value, str)}
    if CALL_ID.lower() in present:
        return None
    values = (present.get(name.decode("ascii")) for name in KEY_HEADERS)
    return tuple(None if value is None else value.encode("latin-1") for value in values)


def _annotate_request(_transport: Any, request: Any) -> None:
    """Annotate a request of DSPy's own client, which has a list of headers."""
    if not propagation.is_on or request.method.upper() != "POST":
        return
    credentials = _credentials(request.headers)
    if credentials is not None:
        ours = calls.headers_for(request.url, credentials, is_call=calls.makes_call(request.url))
        # A new list: a retry makes its request from the old one.
        request.headers = [*request.headers, *ours.items()]


def _begin_post(handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallHeaders | None:
    """Annotate a POST of litellm's own clients; None if it goes to no backend."""
    given = kwargs.get("headers") or {}
    credentials = _credentials(given.items())
    if not propagation.is_on or credentials is None or calls.unsafe_packages:
        return None
    client = handler.client
    url = type(client.base_url)(str(args[0] if args else kwargs.get("url", "")))
    destination = calls.destination_of(url, client)
    if destination is None:
        return None
    call = calls.CallHeaders(is_call=calls.makes_call(url.path))
    account = destination.account(credentials, is_clients=False)
    kwargs["headers"] = {**given, **call.for_attempt(account, credentials)}
    return call


def _patch_post(original: Callable[..., Any]) -> Callable[..., Any]:
    def post(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = safely(_begin_post, self, args, kwargs)
        response = original(self, *args, **kwargs)
        safely(calls.observe, response, self.client, call)
        return response

    return post


def _patch_async_post(original: Callable[..., Any]) -> Callable[..., Any]:
    async def post(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = safely(_begin_post, self, args, kwargs)
        response = await original(self, *args, **kwargs)
        safely(calls.observe, response, self.client, call)
        return response

    return post


def instrument_dspy(patches: Patches, module: ModuleType) -> None:
    """Annotate each request of the client inside DSPy."""
    patches.apply(module, "StdlibTransport.stream", before(_annotate_request))
    patches.apply(module, "StdlibAsyncTransport._do_stream", before(_annotate_request))


def instrument_litellm(patches: Patches, module: ModuleType) -> None:
    """Annotate each POST of litellm's own clients; its OpenAI provider uses the OpenAI client."""
    patches.apply(module, "HTTPHandler.post", _patch_post)
    patches.apply(module, "AsyncHTTPHandler.post", _patch_async_post)
