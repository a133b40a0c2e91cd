"""Errors as HTTP responses, each in the form that clients of its path expect."""

from __future__ import annotations

import importlib.metadata
import reprlib
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from autellix_backend.gateway.errors import ClientGoneError, GatewayError, InvalidRequestError, error_shape
from autellix_wire.headers import VERSION

OPENAI_PREFIX = "/v1"
VERSION_HEADER = (VERSION.lower().encode(), importlib.metadata.version("autellix").encode())
"""The header on each response: clients annotate their calls to hosts that send it."""


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error with an error object, routing errors and crashes included."""
    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
    app.add_exception_handler(Exception, _on_crash)


def error_response(error: GatewayError, path: str) -> Response:
    """Return the response of an error, in the form that clients of the path expect."""
    # A frame that raises an error from a variable forms a cycle with it: a refused body would stay in memory
    # until the garbage collector runs.
    error.__traceback__ = None
    return Response(error.body(error_shape(path)), error.status, error.headers, "application/json")


def crash_response(error: Exception, path: str) -> Response:
    """Return the response to a request that failed because of a bug."""
    return error_response(GatewayError(f"the gateway failed: {type(error).__name__}"), path)


async def _on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return error_response(error, request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    hint = _base_url_hint(request) if error.status_code == HTTPStatus.NOT_FOUND else ""
    found = GatewayError(f"{request.method} {request.url.path}: {error.detail}{hint}", headers=error.headers)
    found.status = HTTPStatus(error.status_code)
    found.code = found.status.phrase.lower().replace(" ", "_")
    return error_response(found, request.url.path)


def _base_url_hint(request: Request) -> str:
    """Return what is wrong with a client's base URL; empty if no other path would be served."""
    path = request.url.path
    if _is_served(request, f"{OPENAI_PREFIX}{path}"):
        return f"; expected {OPENAI_PREFIX}{path}: a client's base URL ends in {OPENAI_PREFIX}"
    once = path.removeprefix(OPENAI_PREFIX)
    if path.startswith(2 * OPENAI_PREFIX) and _is_served(request, once):
        return f"; expected {once}: Anthropic's client adds {OPENAI_PREFIX} to its base URL itself"
    return ""


def _is_served(request: Request, path: str) -> bool:
    scope = {**request.scope, "path": path}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(_invalid_request(error.errors()[0]), request.url.path)


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    # Never sent: the client is gone.
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def _on_crash(request: Request, error: Exception) -> Response:
    # Starlette answers crashes outside of all middleware.
    response = crash_response(error, request.url.path)
    response.raw_headers.append(VERSION_HEADER)
    return response


def _invalid_request(problem: dict[str, Any]) -> InvalidRequestError:
    """Return pydantic's first problem as an error that names the field and what was expected."""
    if problem["loc"] == ("body",) or problem["type"] == "json_invalid":
        return InvalidRequestError(f"the body is not the expected JSON object: {problem['msg']}")
    name, message = str(problem["loc"][-1]), problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        message = "is missing; expected a value"
    elif message.startswith("Input should be "):
        expected = message.removeprefix("Input should be ")
        message = f"is {reprlib.repr(problem['input'])}; expected {expected}"
    return InvalidRequestError(f"{name}: {message}", param=name)
