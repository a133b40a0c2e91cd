"""Errors of the gateway, and their shape on the wire: OpenAI's error object, or Anthropic's on its paths.

GatewayError
├── InvalidRequestError      400  a malformed body, header or id
├── InvalidKeyError          401  no API key, or none that is known
├── SessionTokenError        401  the token of the call's session is missing or wrong
├── AdminOnlyError           403  the tenant may not see this
├── NotFoundError            404  no such program, session or engine
├── ConflictError            409  the engine's name is taken, or it is the last one
├── BodyTooLargeError        413  the body exceeds the limit
├── LimitError               429  a limit or a budget of the tenant or the program is reached
├── EngineUnavailableError   503  no engine answers, or it died; mostly the call may be repeated
├── OverloadedError          503  too many calls wait for the engine; the call may be repeated
├── ShuttingDownError        503  the gateway ends; the call may be repeated elsewhere
└── EngineTimeoutError       504  the engine did not answer in time
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from autellix_backend.gateway.calls.dialects import ErrorShape, error_shape
from autellix_backend.gateway.tenancy.quotas import Refusal
from autellix_wire import SESSION_TOKEN, SESSIONS_PATH

RETRY_AFTER_S = 1
"""What a client is told to wait when no engine answers."""

ANTHROPIC_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""Anthropic's name by status; any other is an `invalid_request_error`, from 500 on an `api_error`."""


class GatewayError(Exception):
    """A request that the gateway answers itself, with an error object."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    type = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.receipt: dict[str, str] = {}
        """Receipt headers of the call that failed."""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        return self.receipt

    def body(self, shape: ErrorShape, *, is_final: bool = False) -> bytes:
        """Return the error object as JSON; a final one says that a client's library must not try again."""
        if shape is ErrorShape.ANTHROPIC:
            return _anthropic_body(self.message, self.status)
        return _openai_body(self.message, self.type, self.code, self.param, is_final=is_final)


class InvalidRequestError(GatewayError):
    """The body, a header or an id cannot be used; `param` names it."""

    status = HTTPStatus.BAD_REQUEST
    type = "invalid_request_error"
    code = "invalid_request"


class InvalidKeyError(GatewayError):
    """The request shows no API key of a tenant."""

    status = HTTPStatus.UNAUTHORIZED
    type = "invalid_request_error"
    code = "invalid_api_key"

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"the API key {problem}; expected a key of this gateway, as `Authorization: Bearer KEY` "
            "or `x-api-key: KEY`",
            param="Authorization",
        )

    @property
    def headers(self) -> dict[str, str]:
        """Say how to come in."""
        return {"www-authenticate": "Bearer", **self.receipt}


class SessionTokenError(GatewayError):
    """The call does not prove that its ids are its own; a client that is still starting may come back."""

    status = HTTPStatus.UNAUTHORIZED
    type = "invalid_request_error"
    code = "invalid_session_token"

    def __init__(self, problem: str, *, can_retry: bool) -> None:
        super().__init__(
            f"{SESSION_TOKEN}: the token {problem}; expected the one that POST {SESSIONS_PATH} answered "
            "for the session of this call (gateway.strict_identity is on)",
            param=SESSION_TOKEN,
        )
        self._can_retry = can_retry

    @property
    def headers(self) -> dict[str, str]:
        """Tell an OpenAI client, which retries no 401 by itself, whether to come back."""
        retry = {"x-should-retry": "true", "retry-after-ms": "200"} if self._can_retry else {}
        return {**retry, **self.receipt}


class AdminOnlyError(GatewayError):
    """The tenant is none of the operator's own."""

    status = HTTPStatus.FORBIDDEN
    type = "invalid_request_error"
    code = "permission_denied"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is for the operator: expected the key of a tenant with admin = true")


class NotFoundError(GatewayError):
    """There is no program, session or engine of this id."""

    status = HTTPStatus.NOT_FOUND
    type = "invalid_request_error"
    code = "not_found"


class ConflictError(GatewayError):
    """What is asked for does not go with the engines that there are."""

    status = HTTPStatus.CONFLICT
    type = "invalid_request_error"
    code = "conflict"


class BodyTooLargeError(GatewayError):
    """The body is larger than a setting allows."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    type = "invalid_request_error"
    code = "body_too_large"

    def __init__(self, limit_bytes: int, setting: str = "gateway.max_body_bytes") -> None:
        super().__init__(f"the body exceeds {limit_bytes} bytes ({setting})")


class LimitError(GatewayError):
    """A limit or a budget is reached; the refusal says which, and when to come back."""

    status = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, refusal: Refusal, rate_headers: Mapping[str, str]) -> None:
        super().__init__(f"{refusal.message} (limits.{refusal.limit})", param=f"limits.{refusal.limit}")
        self.type, self.code = refusal.kind, refusal.code
        self._refusal = refusal
        self._rate_headers = rate_headers

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client when to come back, and whether to do so by itself."""
        retry = {"x-should-retry": "true" if self._refusal.should_retry else "false"}
        if (wait_s := self._refusal.retry_after_s) is not None:
            retry["retry-after"] = str(math.ceil(wait_s))
            retry["retry-after-ms"] = str(math.ceil(wait_s * 1000))
        return {**retry, **self._rate_headers, **self.receipt}


class UnavailableError(GatewayError):
    """The call cannot be served at the moment."""

    status = HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self, message: str, *, can_retry: bool = True) -> None:
        super().__init__(message)
        self.can_retry = can_retry

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client whether and when to come back."""
        retry = {"retry-after": str(RETRY_AFTER_S)} if self.can_retry else {}
        return {"x-should-retry": str(self.can_retry).lower(), **retry, **self.receipt}


class EngineUnavailableError(UnavailableError):
    """No engine answers, or it died before its first byte."""

    code = "engine_unavailable"

    def __init__(self, message: str, *, can_retry: bool = True, is_unsent: bool = False) -> None:
        super().__init__(message, can_retry=can_retry)
        self.is_unsent = is_unsent
        """Whether nothing of the call reached the engine, which cannot have done anything for it."""


class OverloadedError(UnavailableError):
    """More calls, or bytes of them, wait for the engine than the settings allow."""

    code = "overloaded"

    def __init__(self, engine: str, limit: str) -> None:
        super().__init__(f"the queue before engine {engine} is full: the limit is {limit}")


class TooManyListenersError(UnavailableError):
    """As many listen to the feed of events as may."""

    code = "too_many_listeners"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} clients listen to the events already, which is the limit; one must go first"
        )


class ShuttingDownError(UnavailableError):
    """The gateway ends and takes no more calls."""

    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("the gateway is shutting down; the call may be repeated")

    @property
    def headers(self) -> dict[str, str]:
        """Make the client connect anew, to a gateway that goes on."""
        return {"connection": "close", **super().headers}


class EngineTimeoutError(GatewayError):
    """The engine took longer than `gateway.upstream_timeout_s`; to repeat the call would cost that again."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    code = "engine_timeout"

    @property
    def headers(self) -> dict[str, str]:
        """Keep the client from repeating the call by itself."""
        return {"x-should-retry": "false", **self.receipt}


def _openai_body(
    message: str, kind: str, code: str | None, param: str | None = None, *, is_final: bool = False
) -> bytes:
    error: dict[str, object] = {"message": message, "type": kind, "param": param, "code": code}
    if is_final:
        error["retryable"] = False
    return msgspec.json.encode({"error": error})


def _anthropic_body(message: str, status: int) -> bytes:
    other = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    kind = ANTHROPIC_TYPES.get(HTTPStatus(status), other)
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def error_response(error: GatewayError, path: str) -> Response:
    """Turn a gateway error into a response, in the shape that clients of this path read."""
    return _respond(error.body(error_shape(path)), error.status, error.headers)


def install_error_handlers(app: FastAPI) -> None:
    """Give every error that leaves the app its path's shape, routing errors and crashes included."""
    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_crash)


async def _on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return error_response(error, request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    message = f"{request.method} {request.url.path}: {error.detail}"
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    is_anthropic = error_shape(request.url.path) is ErrorShape.ANTHROPIC
    body = _anthropic_body(message, error.status_code) if is_anthropic else _openai_body(message, kind, code)
    return _respond(body, error.status_code, error.headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    return error_response(InvalidRequestError(str(error)), request.url.path)


async def _on_crash(request: Request, error: Exception) -> Response:
    return error_response(GatewayError(f"the gateway failed: {type(error).__name__}"), request.url.path)


def _respond(body: bytes, status: int, headers: Mapping[str, str] | None) -> Response:
    return Response(body, status, dict(headers or {}), "application/json")
