"""Ids and JSON bodies of control endpoints: how they are read and checked."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
from fastapi import Query
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.requests import read_headers
from autellix_backend.identity.hints import ID_SCHEMA
from autellix_wire.ids import InvalidIdError, check_id

JSON_TYPE = "application/json"
DEFAULT_LIMIT = 200
MAX_LIMIT = 1000
MAX_CONTROL_BYTES = 64 * 1024
"""The largest body of a control endpoint; those of our own clients are below 1 KiB."""


def _checked(value: str) -> str:
    try:
        return check_id(value, "")
    except InvalidIdError as error:
        raise ValueError(str(error).removeprefix(": ")) from error


def _digits(value: object) -> object:
    # Pydantic also accepts blanks, underscores and a fraction of zero.
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise ValueError(f"is {value!r}; expected a whole number from 1 to {MAX_LIMIT}")
    return value


def json_response(content: object) -> Response:
    """Return an answer past FastAPI, which would validate each value and delay other calls."""
    return Response(msgspec.json.encode(content), media_type=JSON_TYPE)


Id = Annotated[str, AfterValidator(_checked), WithJsonSchema(ID_SCHEMA)]
"""An id by the rules of the wire, without surrounding blanks."""
Limit = Annotated[int, BeforeValidator(_digits), Query(ge=1, le=MAX_LIMIT)]
"""The most rows of a listing."""


class BoundedRequest(Request):
    """A request whose body is bounded, and counts among those that its tenant sends."""

    _content: bytes | None = None

    async def body(self) -> bytes:
        """Return the body; raises as `BodyHold.read` does."""
        if self._content is None:
            gateway = self.app.state.gateway
            max_bytes = min(MAX_CONTROL_BYTES, gateway.settings.gateway.max_body_bytes)
            with gateway.intake.hold(gateway.tenants.of(self.scope)) as hold:
                self._content = await hold.read(read_headers(self.scope), self.receive, max_bytes)
        return self._content


class BodyRoute(APIRoute):
    """A route with a JSON body: FastAPI's own would read one of any size."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that reads the body before FastAPI does."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            bounded = BoundedRequest(request.scope, request.receive)
            if self.body_field is not None:
                _check_type(request.headers.get("content-type", JSON_TYPE))
                await bounded.body()
            return await handle(bounded)

        return handle_bounded


def _check_type(content_type: str) -> None:
    """Raise an InvalidRequestError unless a body is JSON."""
    if content_type.partition(";")[0].strip().lower() != JSON_TYPE:
        problem = f"Content-Type: is {content_type!r}; expected {JSON_TYPE}"
        raise InvalidRequestError(problem, param="Content-Type")
