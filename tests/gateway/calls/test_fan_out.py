"""Calls that an engine makes requests of by itself keep their identity."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.fakes.engine import FakeBehaviour

from autellix_backend.gateway.calls import outbound
from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.reports.request_ids import args_in, marked_id
from autellix_wire import engine_args

CHAT = "/v1/chat/completions"
CHAT_CALLS = next(row for row in DIALECTS if row.path == CHAT)


async def test_a_beam_search_is_named_by_its_identity(serve: Any) -> None:
    headers = {"X-Autellix-Program-ID": "p", "X-Autellix-Final": "true", "X-Request-ID": "mine"}
    async with serve() as rig:
        await rig.chat(headers, use_beam_search=True, n=2, max_tokens=2)
        request = rig.engine.requests[-1]
    args = args_in(f"chatcmpl-{request.headers['x-request-id']}-01-beam-0")
    assert args[engine_args.PROGRAM] == "p"
    assert args[engine_args.CALL] == request.xargs[engine_args.CALL]
    # The program does not end with one of the beams' requests.
    assert engine_args.LAST in request.xargs
    assert engine_args.LAST not in args


async def test_the_answer_of_a_beam_search_shows_none_of_it(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "marked_id", lambda _: "autellix-abcd")
    async with serve(FakeBehaviour(extra_fields={"id": "chatcmpl-autellix-abcd"})) as rig:
        answer = await rig.chat(use_beam_search=True, n=2, max_tokens=2)
    assert re.fullmatch("chatcmpl-[0-9a-f]{8}-[0-9]+", answer["id"])


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/tokenize"])
async def test_no_client_gives_such_a_name(serve: Any, path: str) -> None:
    forged = marked_id({engine_args.PROGRAM: "other", engine_args.TENANT: "other"}) + "-01-beam-0"
    body = {"model": "m", "messages": [], "input": "a", "prompt": "a"}
    async with serve() as rig:
        async with rig.client.post(rig.url + path, json=body, headers={"X-Request-ID": forged}) as response:
            await response.read()
        assert "x-request-id" not in rig.engine.requests[-1].headers
        await rig.chat({"X-Request-ID": "mine"})
        assert rig.engine.requests[-1].headers["x-request-id"] == "mine"


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"n": 4, "max_tokens": 10}, 37),
        ({"n": 4, "max_completion_tokens": 10}, 37),
        ({"n": 4}, 1),
        ({"max_tokens": 1}, 1),
        ({"n": 4, "use_beam_search": False}, 4),
    ],
)
def test_a_beam_search_is_many_requests(fields: dict[str, Any], count: int) -> None:
    data = json.dumps({"use_beam_search": True, **fields}).encode()
    assert parse_body(data, CHAT_CALLS).record_count == count
