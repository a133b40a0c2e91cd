"""Annotates the calls of OpenAI clients: headers on each request, one call id over all retries.

`BaseClient._build_request` is the one method that every request passes, sync or async, streamed or raw,
whichever transport sends it; clients built earlier are covered since the class is patched. `request` wraps
the tries of one call. The two meet by `options.idempotency_key`, which OpenAI clients copy over retries and
do not send.
"""

from __future__ import annotations

import functools

from autellix import _scope
from autellix._backends import Backend, backends
from autellix._safely import safely
from autellix._session import current_session
from autellix_wire import headers as names
from autellix_wire.ids import format_parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._patching import Patches

IMPLICIT = "implicit"
TRUNCATED = "truncated"


class Call:
    """One call of the user's; its headers are made at the first try and kept for the retries."""

    __slots__ = ("headers", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.headers: dict[str, str] | None = None


class Calls:
    """The calls in flight, by idempotency key."""

    def __init__(self) -> None:
        self._in_flight: dict[str, Call] = {}

    def begin(self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Recognise the tries of this call later; None if it is not for a backend."""
        options = kwargs["options"] if "options" in kwargs else args[1]
        if options.method.lower() != "post" or _backend_of(client.base_url) is None:
            return None
        key = options.idempotency_key
        if key is None or key in self._in_flight:
            key = options.idempotency_key = _scope.ids.make("key")
        call = self._in_flight[key] = Call(key)
        return call

    def finish(self, call: Call | None) -> None:
        """Forget a call that has its answer or its error."""
        if call is not None:
            self._in_flight.pop(call.key, None)

    def annotate(self, options: Any, request: Any) -> None:
        """Add our headers to a request for a backend; a header that the user has set stays."""
        if request.method != "POST":
            return
        backend = _backend_of(request.url)
        if backend is None:
            return
        call = self._in_flight.get(options.idempotency_key)
        if call is None or call.headers is None:
            headers = _headers(backend)
            if call is not None:
                call.headers = headers
        else:
            headers = call.headers
        backend.authorization = request.headers.get("Authorization")
        for name, value in headers.items():
            request.headers.setdefault(name, value)
        current_session().touch(backend)


def _backend_of(url: Any) -> Backend | None:
    return backends.find(url.scheme, url.host, url.port, url.path)


def _headers(backend: Backend) -> dict[str, str]:
    strand = _scope.current_strand()
    program = strand.program
    call_id = _scope.ids.make("call")
    parents = strand.advance(call_id)
    program.origins.add(backend)
    headers = {
        names.SESSION_ID: current_session().session_id,
        names.PROGRAM_ID: program.program_id,
        names.THREAD_ID: str(strand.thread_id),
        names.CALL_ID: call_id,
    }
    if program.name is not None:
        headers[names.PROGRAM_NAME] = program.name
    _add_expectations(headers, program)
    if parents is not None:
        headers[names.PARENT_IDS] = format_parents(parents)
    flags = [IMPLICIT] * program.is_implicit + [TRUNCATED] * strand.is_truncated
    strand.is_truncated = False
    if flags:
        headers[names.FLAGS] = ",".join(flags)
    return headers


def _add_expectations(headers: dict[str, str], program: _scope.Program) -> None:
    """Say what the program expects yet: calls count down here; tokens are told once and count down there."""
    made = program.calls_made
    program.calls_made = made + 1
    if program.expected_calls is not None and program.expected_calls > made:
        headers[names.EXPECTED_CALLS] = str(program.expected_calls - made)
    if program.expected_tokens is not None and made == 0:
        headers[names.EXPECTED_TOKENS] = str(program.expected_tokens)


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
        call = safely(calls.begin, self, args, kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            calls.finish(call)

    return request


def _make_async_request(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = safely(calls.begin, self, args, kwargs)
        try:
            return await original(self, *args, **kwargs)
        finally:
            calls.finish(call)

    return request


def instrument_openai(patches: Patches, module: ModuleType) -> None:
    """Patch the base classes of all OpenAI clients, as far as this version has them."""
    patches.apply(getattr(module, "BaseClient", None), "_build_request", _make_build_request)
    patches.apply(getattr(module, "SyncAPIClient", None), "request", _make_request)
    patches.apply(getattr(module, "AsyncAPIClient", None), "request", _make_async_request)
