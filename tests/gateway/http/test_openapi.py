"""The description of the API: whole, sound, and true of what the gateway answers."""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks
from starlette.routing import Route
from tests.fakes.engine import FakeEngine
from tests.serving import serving_thread

from autellix_backend.assembly import create_app
from autellix_backend.gateway.http.bodies import MAX_CONTROL_BYTES
from autellix_backend.gateway.http.openapi import openapi_document
from autellix_backend.settings import GatewaySettings, Settings

MAX_EXAMPLES = 8
"""Requests of each kind (of sound values, of broken ones) to each path."""
TIMEOUT_S = 60.0
# They stay open until their client leaves.
OPEN_ENDED = ("/watch", "/events")
DOCUMENT = openapi_document(create_app(Settings(), FakeEngine()))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Yield the address of a gateway before a fake engine."""
    engine = FakeEngine(keeps_requests=False)
    settings = Settings(gateway=GatewaySettings(max_body_bytes=10_000))
    with serving_thread(create_app(settings, engine), engine) as address:
        yield address


def test_each_route_is_described() -> None:
    routes = {
        (method.lower(), route.path.replace(":path}", "}"))
        for route in create_app(Settings(), FakeEngine()).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    paths: dict[str, dict[str, Any]] = DOCUMENT["paths"]
    assert routes == {(method, path) for path, operations in paths.items() for method in operations}


async def test_the_document_is_served(serve: Any) -> None:
    async with serve() as rig:
        status, document = await rig.get("/openapi.json")
        assert status == 200
        assert document == DOCUMENT


schema = schemathesis.openapi.from_dict(DOCUMENT)


@schema.exclude(path_regex="|".join(OPEN_ENDED)).parametrize()
@settings(
    max_examples=MAX_EXAMPLES,
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_any_request_gets_a_described_answer(case: Any, url: str) -> None:
    case.call_and_validate(
        base_url=url,
        timeout=TIMEOUT_S,
        checks=[
            checks.not_a_server_error,
            openapi_checks.status_code_conformance,
            openapi_checks.content_type_conformance,
            openapi_checks.response_schema_conformance,
            openapi_checks.response_headers_conformance,
        ],
    )


READING = [
    path
    for path, operations in DOCUMENT["paths"].items()
    if operations.get("post", {}).get("requestBody", {}).get("required")
]
JSON = {"content-type": "application/json"}
BROKEN = {
    "no JSON": b"{",
    "no object": b"[1]",
    "null": b"null",
    "nothing": b"",
    "deep": b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "deep and open": b'{"session_id": ' + b"[" * 9000,
}


@pytest.mark.parametrize("path", READING)
@pytest.mark.parametrize("body", BROKEN)
async def test_a_broken_body_is_a_400(serve: Any, path: str, body: str) -> None:
    async with (
        serve() as rig,
        rig.client.post(rig.url + path, data=BROKEN[body], headers=JSON) as response,
    ):
        error = (await response.json())["error"]
        assert (response.status, rig.engine.requests) == (400, [])
        assert re.search("not|parsing", error["message"])


@pytest.mark.parametrize("path", ["/autellix/v1/sessions", "/autellix/v1/engines"])
async def test_a_body_that_is_no_calls_is_small(serve: Any, path: str) -> None:
    data = b'{"session_id": "' + b"x" * MAX_CONTROL_BYTES
    async with serve() as rig, rig.client.post(rig.url + path, data=data, headers=JSON) as response:
        assert response.status == 413


@pytest.mark.parametrize("path", READING)
async def test_a_body_above_the_limit_is_a_413(serve: Any, path: str) -> None:
    data = b'{"a": "' + b"x" * 1000
    async with (
        serve(max_body_bytes=1000) as rig,
        rig.client.post(rig.url + path, data=data, headers=JSON) as response,
    ):
        assert response.status == 413
        assert "exceeds 1000 bytes" in await response.text()
