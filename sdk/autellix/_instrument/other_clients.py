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
        # A new list: a retry makes its request from the old one.
        request.headers = [*request.headers, *calls.headers_for(request.url, credentials).items()]


def _annotate_post(url: Any, headers: dict[str, str] | None) -> dict[str, str] | None:
    credentials = _credentials((headers or {}).items())
    if not propagation.is_on or credentials is None:
        return headers
    return {**(headers or {}), **calls.headers_for(str(url), credentials)}


def _patch_post(original: Callable[..., Any]) -> Callable[..., Any]:
    def post(self: Any, *args: Any, **kwargs: Any) -> Any:
        url = args[0] if args else kwargs.get("url", "")
        annotated = safely(_annotate_post, url, kwargs.get("headers"))
        if annotated:
            kwargs["headers"] = annotated
        return original(self, *args, **kwargs)

    return post


def instrument_dspy(patches: Patches, module: ModuleType) -> None:
    """Annotate each request of the client inside DSPy."""
    patches.apply(module.StdlibTransport, "stream", before(_annotate_request))
    patches.apply(module.StdlibAsyncTransport, "_do_stream", before(_annotate_request))


def instrument_litellm(patches: Patches, module: ModuleType) -> None:
    """Annotate each POST of litellm's own clients; its OpenAI provider uses the OpenAI client."""
    patches.apply(module.HTTPHandler, "post", _patch_post)
    patches.apply(module.AsyncHTTPHandler, "post", _patch_post)
