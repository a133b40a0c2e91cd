"""ASGI middleware for stock vLLM, so that one engine orders programs without a gateway.

`--scheduler-cls` names the scheduler that orders requests, `--middleware` names `ProgramMiddleware`, which
states in `vllm_xargs` which program a call belongs to. It also answers the part of the sessions API by which
clients end their programs. It never fails a request: whatever goes wrong here, vLLM gets the request as it
came. vLLM puts it before its own check of keys (`--api-key`), so it asks that first: nothing of a request
without a key is read.
"""

from __future__ import annotations

import importlib.metadata
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

import msgspec

from autellix_backend.identity.answer_ids import opens_tool_call
from autellix_backend.raw_json import JSON_ERRORS, MAX_READ_BYTES
from autellix_backend.vllm_plugin.direct_calls import HEARTBEAT_S, DirectCall, DirectCalls
from autellix_backend.vllm_plugin.settings import SECTION
from autellix_wire.headers import CALL_ID, IDENTITY_SOURCE, PROGRAM_ID, VERSION
from autellix_wire.ids import InvalidIdError, check_id
from autellix_wire.paths import PROGRAMS_PATH, SESSIONS_PATH
from autellix_wire.sessions import SessionStarted

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CALL_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    }
)
"""Where vLLM reads `vllm_xargs`."""
MAX_BODY_BYTES = 64 * 2**20
"""A longer body passes unread."""
MAX_SESSION_BYTES = 64 * 1024
SCHEDULER = "autellix_backend.vllm_plugin.scheduler.AutellixScheduler"
_DATA = b"data:"
_HEARTBEAT = "/heartbeat"
KEY_CHECK = "AuthenticationMiddleware"
"""vLLM's class that checks keys, of paths below `GUARDED`."""
GUARDED = "/v1"
_HAS_KEY = "autellix.has_key"

# Below vLLM's own logger, whose handler shows it.
logger = logging.getLogger("vllm.autellix")


class ProgramMiddleware:
    """Adds the identity of each call to its body, and follows the ids in its answer."""

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap vLLM's application; `clock` is in monotonic seconds."""
        self._app = app
        self._calls = DirectCalls(clock)
        self._is_idle: bool | None = None
        """Whether it leaves all to a gateway; None until the first request."""
        self._key_check: App | None = None
        """Marks the scope of a request that vLLM lets pass; None where it has no keys."""
        self._has_failed = False
        version = importlib.metadata.version("autellix").encode()
        self._mark = (VERSION.lower().encode(), version)
        self._version = version.decode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or self._is_beside_gateway(scope):
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            await send(_with_headers(message, [self._mark]))

        path, method = scope["path"].removeprefix(scope.get("root_path", "")), scope["method"]
        if f"{path}/".startswith((SESSIONS_PATH + "/", PROGRAMS_PATH + "/")):
            if await self._has_key(scope):
                answer = self._session_answer(method, path, _RequestBody(receive))
            else:
                answer = _refusal()
            await _answer(answer, send_marked)
        elif method == "POST" and path in CALL_PATHS and await self._has_key(scope):
            await self._pass_call(scope, receive, send_marked)
        else:
            await self._app(scope, receive, send_marked)

    async def _has_key(self, scope: Scope) -> bool:
        """Return whether vLLM's own check lets a request pass; without a key, its answer is vLLM's too."""
        if self._key_check is None:
            return True
        seen = {**scope, "path": f"{scope.get('root_path', '')}{GUARDED}"}
        try:
            await self._key_check(seen, _receive_nothing, _send_nothing)
        except Exception:  # noqa: BLE001 -- as in _identify
            self._fail()
        return _HAS_KEY in seen

    async def _pass_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body, call = _RequestBody(receive), None
        if headers.get("content-encoding", "identity") in ("", "identity"):
            call = await self._identify(headers, await body.read(MAX_BODY_BYTES))
        if call is None:
            await self._app(scope, body.again, send)
            return
        answer = _FollowedAnswer(self._calls, call, self._guard)
        try:
            await self._app(_scope_of(scope, call), body.replaced(call.body), answer.sender(send))
        finally:
            await self._guard(self._calls.close(call))

    async def _identify(self, headers: dict[str, str], data: bytes | None) -> DirectCall | None:
        if data is None:
            return None
        try:
            return await self._calls.identify(headers, data)
        except JSON_ERRORS:
            # vLLM refuses it in its own words.
            return None
        except Exception:  # noqa: BLE001 -- a fault of ours must not fail a request
            self._fail()
            return None

    async def _guard(self, action: Awaitable[None]) -> None:
        """Do our part beside an answer; if it fails, log it and let the answer go on."""
        try:
            await action
        except Exception:  # noqa: BLE001 -- as in _identify
            self._fail()

    def _fail(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.exception("Autellix: a call could not be followed, and goes on as it came")

    def _is_beside_gateway(self, scope: Scope) -> bool:
        if self._is_idle is None:
            self._is_idle = self._look_at(scope)
            try:
                self._key_check = _key_check_of(scope)
            except Exception:  # noqa: BLE001 -- as in _identify
                self._fail()
                self._key_check = _mark_nothing
        return self._is_idle

    def _look_at(self, scope: Scope) -> bool:
        """Return whether the engine has a gateway, which identifies its calls; warn of what does not fit."""
        try:
            config = scope["app"].state.engine_client.vllm_config
            given = config.additional_config
            section = given.get(SECTION, {}) if isinstance(given, dict) else {}
            processes = getattr(config.parallel_config, "_api_process_count", 1)
            scheduler = config.scheduler_config.scheduler_cls
        except (KeyError, AttributeError):
            return False
        if section.get("report_address") is not None:
            logger.warning(
                "Autellix: this engine has a report address, so a gateway identifies its calls: the "
                "middleware leaves all requests as they are"
            )
            return True
        if scheduler != SCHEDULER:
            logger.warning("Autellix: the middleware has no effect without --scheduler-cls %s", SCHEDULER)
        if processes > 1:
            self._calls.note_peers()
            logger.warning(
                "Autellix: %d API server processes, which do not share what they know: a call that names no "
                "program joins one only by an id that the same process has given. Start vLLM with "
                "--api-server-count 1, or have clients name their programs",
                processes,
            )
        return False

    async def _session_answer(self, method: str, path: str, body: _RequestBody) -> tuple[HTTPStatus, bytes]:
        calls, (kind, own_id) = self._calls, _split_path(path)
        if (method, kind, own_id) == ("POST", SESSIONS_PATH, ""):
            start = msgspec.json.decode(await body.read(MAX_SESSION_BYTES) or b"", type=_Start)
            session_id = check_id(start.session_id, "session_id")
            # It begins with its first call: only these have passed vLLM's own checks.
            await calls.heartbeat(session_id)
            started = SessionStarted(session_id=session_id, heartbeat_s=HEARTBEAT_S, version=self._version)
            return HTTPStatus.CREATED, started.to_bytes()
        if method == "POST" and kind == SESSIONS_PATH and own_id.endswith(_HEARTBEAT):
            await calls.heartbeat(own_id.removesuffix(_HEARTBEAT))
            return HTTPStatus.OK, b"{}"
        if method == "DELETE" and own_id:
            is_session = kind == SESSIONS_PATH
            is_known = await (calls.end_session(own_id) if is_session else calls.end_program(own_id))
            if is_known:
                return HTTPStatus.NO_CONTENT, b""
            return HTTPStatus.NOT_FOUND, _error(f"{own_id!r} is not known here")
        return HTTPStatus.NOT_FOUND, _error(f"{method} {path}: not here without a gateway")


async def _answer(answer: Awaitable[tuple[HTTPStatus, bytes]], send: Send) -> None:
    """Answer a request of the sessions API; one that asks for what only a gateway has is a 404."""
    try:
        status, content = await answer
    except (InvalidIdError, *JSON_ERRORS) as error:
        status, content = HTTPStatus.BAD_REQUEST, _error(str(error))
    length = str(len(content)).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": int(status), "headers": head})
    await send({"type": "http.response.body", "body": content})


async def _refusal() -> tuple[HTTPStatus, bytes]:
    return HTTPStatus.UNAUTHORIZED, _error("expected a key of this server in the header Authorization")


class _Start(msgspec.Struct):
    session_id: str


class _RequestBody:
    """The body of a request, which vLLM can still have as it came."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []

    async def read(self, max_bytes: int) -> bytes | None:
        """Return the whole body; None if it is too long, or its client disconnects."""
        parts: list[bytes] = []
        size_bytes = 0
        while True:
            message = await self._receive()
            self._messages.append(message)
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size_bytes += len(parts[-1])
            if size_bytes > max_bytes:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)

    async def again(self) -> Message:
        """Receive the request as it came."""
        return self._messages.pop(0) if self._messages else await self._receive()

    def replaced(self, body: bytes) -> Receive:
        """Return what receives another body in its place."""
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]
        return self.again


class _FollowedAnswer:
    """Follows the answer to a call on its way to the client."""

    def __init__(
        self, calls: DirectCalls, call: DirectCall, guard: Callable[[Awaitable[None]], Awaitable[None]]
    ) -> None:
        self._calls, self._call, self._guard = calls, call, guard
        self._is_stream = False
        self._kept = b""
        """What has come of a whole answer, or of a line of a stream."""

    def sender(self, send: Send) -> Send:
        """Return what sends the answer on, once its ids are remembered."""

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] < HTTPStatus.BAD_REQUEST:
                    await self._guard(self._begin(message))
                message = _with_headers(message, self._head())
            elif message["type"] == "http.response.body" and self._call.is_accepted:
                is_last = not message.get("more_body", False)
                await self._guard(self._note(message.get("body", b""), is_last=is_last))
            await send(message)

        return send_noted

    async def _begin(self, message: Message) -> None:
        types = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
        self._is_stream = types[:1] != [] and types[0].startswith(b"text/event-stream")
        await self._calls.accept(self._call)

    async def _note(self, part: bytes, *, is_last: bool) -> None:
        if not self._is_stream:
            if len(self._kept) <= MAX_READ_BYTES:
                self._kept += part
            if is_last and len(self._kept) <= MAX_READ_BYTES:
                await self._calls.note_answer(self._call, self._kept)
            return
        *lines, self._kept = (self._kept + part).split(b"\n")
        for line in lines:
            # Nearly all lines are of tokens alone.
            if line.startswith(_DATA) and (opens_tool_call(line) or b'"response"' in line):
                await self._calls.note_answer(self._call, line[len(_DATA) :])

    def _head(self) -> list[tuple[bytes, bytes]]:
        start, source = self._call.start, self._call.identity.source
        named = ((PROGRAM_ID, start.program_id), (CALL_ID, start.call_id), (IDENTITY_SOURCE, source))
        return [(name.lower().encode(), value.encode("latin-1")) for name, value in named]


def _scope_of(scope: Scope, call: DirectCall) -> Scope:
    """Return the scope of a call whose body is another one."""
    own = {b"content-length": str(len(call.body)).encode()}
    if call.request_id is not None:
        own[b"x-request-id"] = call.request_id.encode()
    replaced = (*own, b"transfer-encoding")
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in replaced]
    return {**scope, "headers": [*headers, *own.items()]}


def _with_headers(message: Message, headers: Iterable[tuple[bytes, bytes]]) -> Message:
    if message["type"] != "http.response.start":
        return message
    return {**message, "headers": [*message.get("headers", ()), *headers]}


def _split_path(path: str) -> tuple[str, str]:
    kind = SESSIONS_PATH if path.startswith(SESSIONS_PATH) else PROGRAMS_PATH
    return kind, path.removeprefix(kind).removeprefix("/")


def _error(message: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error"}})


def _key_check_of(scope: Scope) -> App | None:
    """Return vLLM's check of keys before an application that marks what it gets; None where there is none."""
    for each in getattr(scope.get("app"), "user_middleware", ()):
        if each.cls.__name__ == KEY_CHECK:
            check: App = each.cls(_mark_key, *each.args, **each.kwargs)
            return check
    return None


async def _mark_key(scope: Scope, _receive: Receive, _send: Send) -> None:
    scope[_HAS_KEY] = True


async def _mark_nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    pass


async def _receive_nothing() -> Message:
    return {"type": "http.disconnect"}


async def _send_nothing(_message: Message) -> None:
    pass
