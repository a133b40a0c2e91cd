"""A scripted engine for real agent clients: its answers call their tools, as the steps in the prompt say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from tests.fakes.agent_answers import AGENT_DIALECTS
from tests.fakes.agent_turns import next_turn, read_task
from tests.fakes.answers import MESSAGES_PATH

AGENT_MODELS = ("scripted", "gpt-5", "claude-sonnet-4-5")
"""Some clients ask for a name that they know."""
MAX_AGENT_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExchange:
    """One call, byte for byte."""

    path: str
    body: bytes
    answer: bytes


class AgentEngine:
    """Answers chat completions, responses and messages, and keeps what it received and sent."""

    def __init__(self) -> None:
        self.exchanges: list[AgentExchange] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen on a free port of the loopback address; yield the root of the server."""
        runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_AGENT_BODY_BYTES)
        app.router.add_get("/health", _healthy)
        app.router.add_get("/v1/models", _list_models)
        app.router.add_post(f"{MESSAGES_PATH}/count_tokens", _count_tokens)
        for path in AGENT_DIALECTS:
            app.router.add_post(path, self._call)
        return app

    async def _call(self, request: web.Request) -> web.StreamResponse:
        sent = await request.read()
        body, dialect = json.loads(sent), AGENT_DIALECTS[request.path]
        turn, tokens = next_turn(read_task(request.path, body)), len(sent) // 4
        is_stream = bool(body.get("stream"))
        if is_stream:
            pieces = list(dialect.events(body, turn, tokens))
        else:
            pieces = [json.dumps(dialect.answer(body, turn, tokens)).encode()]
        answer = b"".join(pieces)
        self.exchanges.append(AgentExchange(path=request.path, body=sent, answer=answer))
        if not is_stream:
            return web.Response(body=answer, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        # A client may leave as soon as it has what it needs.
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
            await response.write_eof()
        return response


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response()


async def _list_models(_request: web.Request) -> web.Response:
    facts = {"object": "model", "created": 1_700_000_000, "owned_by": "autellix", "max_model_len": 200_000}
    return web.json_response({"object": "list", "data": [{"id": name, **facts} for name in AGENT_MODELS]})


async def _count_tokens(request: web.Request) -> web.Response:
    return web.json_response({"input_tokens": len(await request.read()) // 4})
