"""Errors as HTTP responses: every error that leaves the app has the form its path's clients expect."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from autellix_backend.gateway.errors import GatewayError, InvalidRequestError, error_shape


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error with an error object, routing errors and crashes included."""
    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_crash)


def error_response(error: GatewayError, path: str) -> Response:
    """Return the response of an error, in the form that clients of the path expect."""
    return Response(error.body(error_shape(path)), error.status, error.headers, "application/json")


async def _on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return error_response(error, request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    found = GatewayError(f"{request.method} {request.url.path}: {error.detail}")
    found.status = HTTPStatus(error.status_code)
    found.code = found.status.phrase.lower().replace(" ", "_")
    if error.status_code < 500:
        found.type = InvalidRequestError.type
    found.receipt = dict(error.headers or {})
    return error_response(found, request.url.path)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    return error_response(InvalidRequestError(str(error)), request.url.path)


async def _on_crash(request: Request, error: Exception) -> Response:
    return error_response(GatewayError(f"the gateway failed: {type(error).__name__}"), request.url.path)
