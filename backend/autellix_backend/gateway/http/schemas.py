"""What the routes' descriptions share: ids, JSON bodies, and the errors that a route may answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError, WithJsonSchema
from starlette.requests import Request

from autellix_backend.gateway.errors import ErrorShape
from autellix_backend.gateway.http.requests import read_body, read_headers
from autellix_wire import MAX_ID_BYTES, InvalidIdError, check_id

Schema = dict[str, Any]
Body = TypeVar("Body")

ID_SCHEMA: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_ID_BYTES,
    "pattern": "^[!-~]([ -~]*[!-~])?$",
    "description": "Printable ASCII",
}
_STATUS_TEXTS = {
    400: "A malformed body, header, parameter or id; `param` names it",
    401: "A missing or unknown API key, or a missing or wrong session token",
    403: "For admins only",
    404: "There is no such session, program or engine",
    409: "The engine's name is taken, or no engine that takes calls would be left",
    413: "The body is too large",
    429: "A limit is reached; `Retry-After` holds the time until a retry",
    500: "The gateway failed",
    503: "No engine answers, or the gateway is shutting down; the call may be repeated",
    504: "The engine did not answer in time",
}


class OpenAIErrorFields(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | int | None = None


class OpenAIError(BaseModel):
    """An error in OpenAI's form."""

    error: OpenAIErrorFields


class AnthropicErrorFields(BaseModel):
    """Anthropic's error object."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """An error in Anthropic's form."""

    type: Literal["error"]
    error: AnthropicErrorFields


def _checked(value: str) -> str:
    try:
        return check_id(value, "")
    except InvalidIdError as error:
        raise ValueError(str(error).removeprefix(": ")) from error


Id = Annotated[str, AfterValidator(_checked), WithJsonSchema(ID_SCHEMA)]
"""An id by the rules of the wire, without surrounding blanks."""


def refusals(*statuses: int, shape: ErrorShape = ErrorShape.OPENAI) -> dict[int | str, Schema]:
    """Return the description of these error statuses, for a route's `responses`."""
    model = AnthropicError if shape is ErrorShape.ANTHROPIC else OpenAIError
    # By reference: FastAPI would build a serializer for each status of each route.
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    return {status: {"description": _STATUS_TEXTS[status], "content": content} for status in statuses}


def json_body(model: type[Body]) -> Any:
    """Return a dependency that reads a JSON body of any content type, up to `gateway.max_body_bytes`."""
    adapter = TypeAdapter(model)

    async def read(request: Request) -> Body:
        max_bytes = request.app.state.components.settings.gateway.max_body_bytes
        data = await read_body(read_headers(request.scope), request.receive, max_bytes)
        try:
            return adapter.validate_json(data)
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from error

    return Depends(read)


def describe_body(model: type[Any]) -> Schema:
    """Return the description of a body that `json_body` reads, for a route's `openapi_extra`."""
    schema = TypeAdapter(model).json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
