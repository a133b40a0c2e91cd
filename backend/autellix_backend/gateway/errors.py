"""Errors of the gateway in their two JSON forms: OpenAI's error object, and Anthropic's below `/v1/messages`.

GatewayError
├── InvalidRequestError       400  malformed body, header, id or parameter
├── InvalidKeyError           401  missing or unknown API key
├── SessionTokenError         401  missing or wrong session token
├── ForeignProgramError       403  the program is another client's
├── AdminOnlyError            403  the tenant is no admin
├── ForeignPageError          403  the request comes from another site's page
├── NotFoundError             404  no such program, session or engine
│   └── UnknownModelError          no engine serves the model
├── ConflictError             409  the engine's name is taken, or no engine would be left
├── SessionTakenError         409  the session is another client's
├── RequestTimeoutError       408  the request did not arrive in time
├── BodyTooLargeError         413  the body exceeds a limit
├── ContentEncodingError      415  the body is compressed
├── UpgradeError              426  a call is made with POST, not over a WebSocket
├── LimitError                429  a rate limit, quota or budget is reached
├── EngineAnswerError         502  the engine's answer is not HTTP, not JSON, or too long
│   └── EngineKeyError             it does not take the gateway's key
├── UnavailableError          503
│   ├── EngineUnavailableError     no engine answers, or it died
│   ├── OverloadedError            the engine's queue is full
│   ├── IntakeFullError            too many bytes of bodies arrive at once
│   ├── TooManySubscribersError    the event feed has its maximum of subscribers
│   ├── TooManyOpenRequestsError   the tenant has its maximum of open requests
│   ├── StartingError              the engines are starting
│   └── ShuttingDownError          the gateway is shutting down
├── EngineTimeoutError        504  the engine did not answer in time
└── LoopError                 508  the request is a probe of this gateway
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec

from autellix_wire.headers import PROGRAM_ID, SESSION_PROOF, SESSION_TOKEN
from autellix_wire.paths import SESSIONS_PATH

ANTHROPIC_PATH = "/v1/messages"
RESPONSES_PATH = "/v1/responses"
RETRY_AFTER_S = 1
"""When a client may retry a call that no engine could take."""
CLIENT_PATIENCE_S = 60.0
"""The longest wait that OpenAI's clients honour; after a longer one they do not retry."""

SHOWN_MODELS, SHOWN_CHARACTERS = 20, 200

ANTHROPIC_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""Anthropic's error types by status; the others are `invalid_request_error` below 500, `api_error` above."""


class ErrorShape(enum.Enum):
    """The JSON form of an error."""

    OPENAI = "openai"
    """`{"error": {"message", "type", "param", "code"}}`"""
    ANTHROPIC = "anthropic"
    """`{"type": "error", "error": {"type", "message"}}`"""
    RESPONSE = "response"
    """OpenAI's, and within a stream the event `response.failed`."""


def error_shape(path: str) -> ErrorShape:
    """Return the form in which clients of a path expect errors."""
    for prefix, shape in (ANTHROPIC_PATH, ErrorShape.ANTHROPIC), (RESPONSES_PATH, ErrorShape.RESPONSE):
        if path == prefix or path.startswith(prefix + "/"):
            return shape
    return ErrorShape.OPENAI


class GatewayError(Exception):
    """A request that the gateway answers itself, with an error object."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal_error"
    type: str | None = None
    """OpenAI's type of the error; by default that of its status."""

    def __init_subclass__(cls, status: HTTPStatus | None = None, code: str | None = None) -> None:
        """Set the status and code of a kind of error; by default those of its base."""
        if status is not None:
            cls.status = status
        if code is not None:
            cls.code = code

    def __init__(
        self, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        """Headers of the response; a call that failed adds those of its receipt."""

    def body(self, shape: ErrorShape, *, is_final: bool = False) -> bytes:
        """Return the error object as JSON; `is_final` tells the client's library not to retry."""
        is_clients = self.status < HTTPStatus.INTERNAL_SERVER_ERROR
        if shape is ErrorShape.ANTHROPIC:
            kind = ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if is_clients else "api_error")
            return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": self.message}})
        kind = self.type or ("invalid_request_error" if is_clients else "server_error")
        final = {"retryable": False} if is_final else {}
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code, **final}
        return msgspec.json.encode({"error": error})


class ClientGoneError(Exception):
    """The client went away before its request was complete; no answer can be sent."""


class InvalidRequestError(GatewayError, status=HTTPStatus.BAD_REQUEST, code="invalid_request"):
    """The body, a header, a parameter or an id is malformed; `param` names it."""


class InvalidKeyError(GatewayError, status=HTTPStatus.UNAUTHORIZED, code="invalid_api_key"):
    """The request has no API key, or an unknown one."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"the API key {problem}; expected a key of this gateway, as `Authorization: Bearer KEY` "
            "or `x-api-key: KEY`",
            param="Authorization",
            headers={"www-authenticate": "Bearer"},
        )


class SessionTokenError(GatewayError, status=HTTPStatus.UNAUTHORIZED, code="invalid_session_token"):
    """The call does not prove that its session id is its own."""

    def __init__(self, problem: str, *, can_retry: bool) -> None:
        super().__init__(
            f"{SESSION_TOKEN}: the token {problem}; expected the one that POST {SESSIONS_PATH} answered "
            f"for the session of this call, or the {SESSION_PROOF} of the client that started it "
            "(gateway.strict_identity is on)",
            param=SESSION_TOKEN,
            # OpenAI's clients retry a 401 only if this header allows it.
            headers={"x-should-retry": "true", "retry-after-ms": "200"} if can_retry else {},
        )


class ForeignProgramError(GatewayError, status=HTTPStatus.FORBIDDEN, code="foreign_program"):
    """The call's program belongs to another client, and identity is strict."""

    def __init__(self, program_id: str) -> None:
        super().__init__(
            f"{PROGRAM_ID}: {program_id!r} is a program of another client; expected one of the client whose "
            f"{SESSION_TOKEN} the call carries (gateway.strict_identity is on)",
            param=PROGRAM_ID,
        )


class SessionTakenError(GatewayError, status=HTTPStatus.CONFLICT, code="session_taken"):
    """A running session belongs to another client, and identity is strict."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session_id: {session_id!r} is a running session of another client; expected its API key, its "
            "`proof`, or its token (gateway.strict_identity is on)",
            param="session_id",
        )


class AdminOnlyError(GatewayError, status=HTTPStatus.FORBIDDEN, code="permission_denied"):
    """The tenant is no admin."""

    def __init__(self, what: str, expected: str = "the key of a tenant with admin = true") -> None:
        super().__init__(f"{what} is for the operator: expected {expected}")


class ForeignPageError(GatewayError, status=HTTPStatus.FORBIDDEN, code="foreign_page"):
    """The request comes from a page of another site."""


class NotFoundError(GatewayError, status=HTTPStatus.NOT_FOUND, code="not_found"):
    """There is no program, session or engine of this id."""


class UnknownModelError(NotFoundError, code="model_not_found"):
    """No engine serves the model of a call."""

    def __init__(self, model: str | None, known: Sequence[str]) -> None:
        names = ", ".join(map(repr, known[:SHOWN_MODELS])) + (", …" if len(known) > SHOWN_MODELS else "")
        shown = repr(model)[:SHOWN_CHARACTERS]
        super().__init__(f"model: no engine serves {shown}; expected one of {names}", param="model")


class ConflictError(GatewayError, status=HTTPStatus.CONFLICT, code="conflict"):
    """The state of the gateway or of its engines forbids it."""


class BodyTooLargeError(GatewayError, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, code="body_too_large"):
    """The body exceeds a limit."""

    def __init__(self, limit_bytes: int, setting: str | None = None) -> None:
        super().__init__(f"the body exceeds {limit_bytes} bytes" + (f" ({setting})" if setting else ""))


class RequestTimeoutError(GatewayError, status=HTTPStatus.REQUEST_TIMEOUT, code="request_timeout"):
    """The request did not arrive in time."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the request did not arrive in time: {problem}", headers={"connection": "close"})


class ContentEncodingError(
    GatewayError, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, code="unsupported_content_encoding"
):
    """The request's body is compressed, which neither the gateway nor the engines read."""

    def __init__(self, encoding: str) -> None:
        problem = f"Content-Encoding: is {encoding!r}; expected a body that is not encoded"
        super().__init__(problem, param="Content-Encoding", headers={"accept-encoding": "identity"})


class UpgradeError(GatewayError, status=HTTPStatus.UPGRADE_REQUIRED, code="upgrade_required"):
    """A client asks for a WebSocket where calls are made with POST."""

    def __init__(self) -> None:
        problem = "Upgrade: WebSockets are not offered here; expected POST over HTTP"
        super().__init__(problem, param="Upgrade", headers={"upgrade": "HTTP/1.1"})


class LimitError(GatewayError, status=HTTPStatus.TOO_MANY_REQUESTS):
    """A rate limit, quota or budget is reached."""

    def __init__(self, code: str, kind: str, limit: str, message: str, retry_after_s: float | None) -> None:
        """Describe the limit.

        Args:
            code: OpenAI's code of the error.
            kind: OpenAI's type of the error.
            limit: The setting, below `limits`.
            message: What was used and what is allowed.
            retry_after_s: When a retry may succeed; None if never.
        """
        super().__init__(f"{message} (limits.{limit})", param=f"limits.{limit}")
        self.type, self.code = kind, code
        should_retry = retry_after_s is not None and retry_after_s <= CLIENT_PATIENCE_S
        self.headers["x-should-retry"] = str(should_retry).lower()
        if retry_after_s is not None:
            self.headers["retry-after"] = str(math.ceil(retry_after_s))
            self.headers["retry-after-ms"] = str(math.ceil(retry_after_s * 1000))


class UnavailableError(GatewayError, status=HTTPStatus.SERVICE_UNAVAILABLE):
    """The request cannot be served at the moment; a client may repeat it."""

    def __init__(self, message: str) -> None:
        headers = {"x-should-retry": "true", "retry-after": str(RETRY_AFTER_S)}
        super().__init__(message, headers=headers)

    def forbid_retry(self) -> None:
        """Mark the answer so that client libraries do not repeat the request."""
        self.headers["x-should-retry"] = "false"
        self.headers.pop("retry-after", None)


class EngineUnavailableError(UnavailableError, code="engine_unavailable"):
    """No engine answers, or it died before its first byte."""

    def __init__(self, message: str, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent
        """Whether nothing of the call reached the engine, so a retry cannot repeat any work."""


class OverloadedError(UnavailableError, code="overloaded"):
    """The engine's queue holds as many calls or bytes as it may."""

    def __init__(self, engine: str, limit: str) -> None:
        super().__init__(f"the queue of engine {engine} is full: the limit is {limit}")


class IntakeFullError(UnavailableError, code="overloaded"):
    """Too many bytes of request bodies arrive at once, from all tenants or from this one."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"the gateway receives too many bytes of request bodies at once: the limit is {limit_bytes}, "
            "and half of that for one tenant"
        )


class TooManySubscribersError(UnavailableError, code="too_many_subscribers"):
    """The event feed has its maximum of subscribers, in all or from one tenant."""

    def __init__(self, limit: int, whose: str = "the event feed") -> None:
        super().__init__(f"{whose} already has {limit} subscribers, the maximum; close one first")


class TooManyOpenRequestsError(UnavailableError, code="too_many_open_requests"):
    """A tenant has its maximum of open requests."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the tenant already has {limit} open requests, the maximum")


class StartingError(UnavailableError, code="starting"):
    """The gateway's engines are starting; the client should retry later."""

    def __init__(self) -> None:
        super().__init__("the engines are starting; retry in a few seconds")
        self.headers["retry-after"] = "5"
        # The gateway's own server takes over the address.
        self.headers["connection"] = "close"


class ShuttingDownError(UnavailableError, code="shutting_down"):
    """The gateway is shutting down; the client should connect to another one."""

    def __init__(self) -> None:
        super().__init__("the gateway is shutting down")
        self.headers["connection"] = "close"


class EngineAnswerError(GatewayError, status=HTTPStatus.BAD_GATEWAY, code="bad_engine_answer"):
    """The engine's answer cannot be used; a retry would repeat all its work."""

    def __init__(self, engine: str, problem: str) -> None:
        super().__init__(f"engine {engine} {problem}", headers={"x-should-retry": "false"})


class EngineKeyError(EngineAnswerError, code="engine_key_refused"):
    """The engine does not take the gateway's own key, or its account; what it says is for the operator."""

    def __init__(self, engine: str, status: int) -> None:
        super().__init__(
            engine,
            f"does not take the gateway's key (status {status}); only the gateway's operator can mend it",
        )


class EngineTimeoutError(GatewayError, status=HTTPStatus.GATEWAY_TIMEOUT, code="engine_timeout"):
    """The engine took longer than `gateway.upstream_timeout_s`; a retry would take that long again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"x-should-retry": "false"})


class LoopError(GatewayError, status=HTTPStatus.LOOP_DETECTED, code="loop_detected"):
    """The request is a probe of this very gateway, which cannot be its own engine."""

    def __init__(self) -> None:
        super().__init__("the engine at this address is this gateway itself")
