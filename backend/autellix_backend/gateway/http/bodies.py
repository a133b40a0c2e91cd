"""Ids and JSON bodies of control endpoints: how they are read, checked and described."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, TypeAdapter, ValidationError, WithJsonSchema
from starlette.requests import Request

from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.requests import read_body, read_headers
from autellix_wire.ids import MAX_ID_BYTES, InvalidIdError, check_id

Body = TypeVar("Body")

ID_SCHEMA: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_ID_BYTES,
    "pattern": "^[!-~]([ -~]*[!-~])?$",
    "description": "Printable ASCII",
}
JSON_TYPE = "application/json"
MAX_CONTROL_BYTES = 64 * 1024
"""The largest body of a control endpoint; those of our own clients are below 1 KiB."""


def _checked(value: str) -> str:
    try:
        return check_id(value, "")
    except InvalidIdError as error:
        raise ValueError(str(error).removeprefix(": ")) from error


Id = Annotated[str, AfterValidator(_checked), WithJsonSchema(ID_SCHEMA)]
"""An id by the rules of the wire, without surrounding blanks."""


def json_body(model: type[Body]) -> Any:
    """Return a dependency that reads the JSON body of a control endpoint."""
    adapter = TypeAdapter(model)

    async def read(request: Request) -> Body:
        content_type = request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
        if content_type != JSON_TYPE:
            problem = f"Content-Type: is {content_type!r}; expected {JSON_TYPE}"
            raise InvalidRequestError(problem, param="Content-Type")
        components = request.app.state.components
        max_bytes = min(MAX_CONTROL_BYTES, components.settings.gateway.max_body_bytes)
        with components.intake.hold(components.tenants.of(request.scope)) as hold:
            data = await read_body(read_headers(request.scope), request.receive, hold, max_bytes)
        try:
            return adapter.validate_json(data)
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from error

    return Depends(read)


def describe_body(model: type[Any]) -> dict[str, Any]:
    """Return the description of a body that `json_body` reads, for a route's `openapi_extra`."""
    schema = TypeAdapter(model).json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
