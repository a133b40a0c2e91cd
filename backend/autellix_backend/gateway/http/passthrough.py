"""Endpoints that forward requests to an engine as they are; these are no calls.

Each counts as a request of its tenant. A long text takes an engine's tokenizer seconds, in which no call of
others gets through it: a tenant has one of these at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
from aiohttp import ClientResponse
from starlette.types import Message, Receive, Scope, Send

from autellix_backend.engines.probe import MODELS_PATH
from autellix_backend.gateway.calls.sse import error_event
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.models import ModelLists
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.engines.refusals import Caller, cut, fault_of, retry_after_s, words_of
from autellix_backend.gateway.engines.upstream import Upstream, request_headers, response_headers
from autellix_backend.gateway.errors import (
    RESPONSES_PATH,
    EngineAnswerError,
    EngineKeyError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    InvalidRequestError,
    error_shape,
)
from autellix_backend.gateway.requests import read_headers, run_while_connected
from autellix_backend.gateway.tenancy.intake import LONG_BODY_BYTES, Intake
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.tenants import Tenant, Tenants
from autellix_backend.raw_json import JSON_ERRORS
from autellix_backend.stores.base import ProgramStore


class _Named(msgspec.Struct):
    """What is read of a body."""

    model: str | None = None


class _Request(NamedTuple):
    """What is forwarded."""

    method: str
    path: str
    target: str
    """Path and query, as the client wrote them."""
    headers: Mapping[str, str]
    body: bytes
    caller: Caller


class PassthroughEndpoint:
    """ASGI app of the paths that are forwarded as they are, streams included."""

    def __init__(
        self,
        pool: EnginePool,
        models: ModelLists,
        tenants: Tenants,
        intake: Intake,
        store: ProgramStore,
        limiter: Limiter | None,
        *,
        clock: Callable[[], float],
        max_body_bytes: int,
    ) -> None:
        self._pool = pool
        self._models = models
        self._store = store
        self._clock = clock
        self._tenants = tenants
        self._intake = intake
        self._limiter = limiter
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request while its client is connected."""
        target, headers = _target(scope), read_headers(scope)
        # Without a call that would take it over, the body counts until the answer.
        tenant = self._tenants.of(scope)
        with self._intake.hold(tenant) as hold:
            body = await hold.read(headers, receive, self._max_body_bytes, "gateway.max_body_bytes")
            # All of a tenant count as one program: they say less of an engine than calls do.
            caller = Caller(f"{tenant.name} pass-through", tenant.name, _model_of(scope, body))
            request = _Request(scope["method"], scope["path"], target, headers, body, caller)
            hold.end_turn()
            await run_while_connected(self._forward(scope, tenant, request, send), receive)

    async def _forward(self, scope: Scope, tenant: Tenant, request: _Request, send: Send) -> None:
        model = request.caller.model
        async with contextlib.AsyncExitStack() as stack:
            counting = None if self._limiter is None else self._limiter.counting(tenant, self._clock)
            rates = {} if counting is None else stack.enter_context(counting)
            if len(request.body) > LONG_BODY_BYTES:
                await stack.enter_async_context(self._turns[tenant.name])
            send = partial(_send_with, send, rates)
            engine = await self._holder(scope, tenant)
            if request.path.rstrip("/") == MODELS_PATH and (tenant.models or len(self._pool.groups) > 1):
                await _send_json(send, {"object": "list", "data": self._models_of(tenant)})
                return
            # A body that cannot be read here may name any model there, and one without a name gets the first.
            if model is not None or _needs_model(request):
                tenant.check_model(model)
            await self._models.check(model)
            first, *others = self._pool.choices(engine, request.caller)
            if not await self._relay(first, request, send, may_move=bool(others)):
                await self._relay(others[0], request, send, may_move=False)

    def _models_of(self, tenant: Tenant) -> list[object]:
        known = self._pool.models
        # A single engine's own list is not read.
        allowed = tenant.models or known
        return [known.get(name, {"id": name, "object": "model"}) for name in allowed]

    async def _holder(self, scope: Scope, tenant: Tenant) -> str | None:
        """Return the engine that has the stored response which a path names."""
        response_id = scope.get("path_params", {}).get("response_id")
        if response_id is None:
            return None
        source = await self._store.find_answer(tenant.name, (response_id,), self._clock())
        return None if source is None else source.engine

    async def _relay(self, handle: EngineHandle, request: _Request, send: Send, *, may_move: bool) -> bool:
        """Relay an engine's answer; return False if another engine is to answer."""
        upstream = handle.upstream
        with handle.held():
            try:
                response = await upstream.forward(
                    request.method, request.target, request_headers(request.headers), request.body
                )
                head = response_headers(response.raw_headers)
                if response.content_type == "text/event-stream":
                    await _start(send, response.status, head)
                    await self._relay_stream(upstream, response, request.path, send)
                    return True
                content = await upstream.read(response)
            except EngineUnavailableError as error:
                if error.is_unsent and may_move:
                    return False
                raise
            except (EngineAnswerError, EngineTimeoutError) as error:
                handle.refusals.on_fault(request.caller, f"{error.status:d} {cut(error.message)}")
                raise
            if response.status >= 400 and _is_refused(handle, request, response, content, may_move=may_move):
                return False
            await _start(send, response.status, [*head, (b"content-length", str(len(content)).encode())])
            await send({"type": "http.response.body", "body": content})
            return True

    async def _relay_stream(
        self, upstream: Upstream, response: ClientResponse, path: str, send: Send
    ) -> None:
        last = b""
        try:
            while chunk := await upstream.read_part(response):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except GatewayError as error:
            last = error_event(error, error_shape(path))
        finally:
            response.close()
        await send({"type": "http.response.body", "body": last})


def _is_refused(
    handle: EngineHandle, request: _Request, response: ClientResponse, content: bytes, *, may_move: bool
) -> bool:
    """Note whose fault a failed answer is; return whether another engine is to answer.

    Raises:
        EngineKeyError: if it is about the gateway's key.
    """
    has_clients_key = handle.upstream.shows_key(request.headers)
    # What is not found may be the path, which not every engine has.
    fault = fault_of(response.status, content, lists_model=False, has_clients_key=has_clients_key)
    if fault.is_engines:
        problem = f"{response.status} {words_of(content)}"
        handle.refusals.on_fault(request.caller, problem, retry_after_s(response.headers))
    if fault.can_repeat and may_move:
        return True
    if fault.is_gateways_key:
        raise EngineKeyError(handle.name, response.status)
    return False


def _target(scope: Scope) -> str:
    """Return path and query as the client wrote them: an id may hold an escaped slash.

    A slash at the end is dropped: `/v1/models/` is the list, as at vLLM, which redirects.

    Raises:
        InvalidRequestError: if the path climbs; it could leave the endpoint at a server that resolves it.
    """
    if any(part in (".", "..") for part in scope["path"].split("/")):
        raise InvalidRequestError("path: holds a dot segment; expected a plain id", param="path")
    path: str = scope["raw_path"].decode("latin-1").rstrip("/")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _needs_model(request: _Request) -> bool:
    return request.method == "POST" and not request.path.startswith(RESPONSES_PATH)


def _model_of(scope: Scope, body: bytes) -> str | None:
    """Return the model that a path or a body names; None if that is for the engine to judge."""
    if (model := scope.get("path_params", {}).get("model_id")) is not None:
        return str(model)
    with contextlib.suppress(*JSON_ERRORS):
        return msgspec.json.decode(body, type=_Named).model
    return None


async def _send_json(send: Send, value: object) -> None:
    content = msgspec.json.encode(value)
    length = (b"content-length", str(len(content)).encode())
    await _start(send, 200, [(b"content-type", b"application/json"), length])
    await send({"type": "http.response.body", "body": content})


async def _send_with(send: Send, headers: Mapping[str, str], message: Message) -> None:
    """Send a message of an answer, the first with further headers."""
    if message["type"] == "http.response.start":
        message["headers"] += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send(message)


async def _start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
