"""Each request of a web server is a program of its own, sync or async, streamed or not."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from tests.sdk.propagation import Agent

import autellix
from autellix import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from tests.sdk.conftest import Recording


def make_app(agent: Agent) -> FastAPI:
    app = FastAPI()
    app.add_middleware(web.AsgiMiddleware)

    @app.get("/sync/{name}")
    def sync(name: str) -> str:
        return agent.ask(name)

    @app.get("/async/{name}")
    async def asynchronous(name: str) -> str:
        await asyncio.gather(agent.aask(name + "-1"), agent.aask(name + "-2"))
        return await agent.aask(name + "-3")

    @app.get("/stream/{name}")
    async def stream(name: str) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            for number in "12":
                yield await agent.aask(name + number)

        return StreamingResponse(body())

    return app


async def test_each_asgi_request_is_a_program(agent: Agent) -> None:

    transport = httpx.ASGITransport(app=make_app(agent))
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        await asyncio.gather(*(client.get(f"/{kind}/{kind}7") for kind in ("sync", "async", "stream")))
        await client.get("/sync/again")
    calls = agent.backend.by_content()
    programs = {name: call["x-autellix-program-id"] for name, call in calls.items()}
    assert len(set(programs.values())) == 4
    assert programs["async7-1"] == programs["async7-2"] == programs["async7-3"]
    assert programs["stream71"] == programs["stream72"]
    assert agent.programs()["sync7"] == "GET /sync/{id}"
    assert agent.programs()["again"] == "GET /sync/again"
    assert agent.backend.dag()["async7-3"] == ("async7-1", "async7-2")
    # The flag is for calls outside of any program; a framework's run inside a request is one of its own.
    assert {call.get("x-autellix-flags") for call in calls.values()} == {None}
    assert len(agent.backend.wait_for("DELETE", "/programs/", count=4)) == 4


async def test_what_a_request_starts_and_does_not_await_is_part_of_it(agent: Agent) -> None:
    """A task and a job that go on after the answer; the program ends with the last of them."""
    app, gate, started = FastAPI(), threading.Event(), []
    app.add_middleware(web.AsgiMiddleware)

    async def follow_up() -> None:
        await asyncio.to_thread(gate.wait)
        await agent.aask("task")

    @app.get("/chat")
    async def chat() -> str:
        started.append(asyncio.create_task(follow_up()))
        return await agent.aask("answer")

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        await client.get("/chat")
    assert not [entry for entry in agent.backend.control if entry[0] == "DELETE"]
    gate.set()
    await started[0]
    agent.expect({"answer": (), "task": ()}, "GET /chat")
    await asyncio.to_thread(agent.backend.wait_for, "DELETE", "/programs/")


def test_lifespan_passes_through(agent: Agent) -> None:
    seen = []

    async def app(scope: dict[str, Any], receive: object, send: object) -> None:
        seen.append((scope["type"], autellix.current().name))

    asyncio.run(web.AsgiMiddleware(app)({"type": "lifespan"}, None, None))
    asyncio.run(web.AsgiMiddleware(app)({"type": "websocket", "path": "/chat"}, None, None))
    assert seen == [("lifespan", None), ("websocket", "WEBSOCKET /chat")]


def test_each_wsgi_request_is_a_program(agent: Agent) -> None:
    """Also the part of it that is made while the answer is sent."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        name = environ["PATH_INFO"].strip("/")
        if name == "fail":
            raise KeyError("users")
        start_response("200 OK", [("Content-Type", "text/plain")])
        agent.ask(name + " head")
        if name == "whole":
            return [b"whole"]
        return (agent.ask(f"{name} part {number}").encode() for number in "12")

    class Quiet(WSGIRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    middleware = web.WsgiMiddleware(app)
    server = make_server("127.0.0.1", 0, middleware, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        for path in ("whole", "streamed", "streamed"):
            assert httpx.get(f"http://127.0.0.1:{server.server_port}/{path}").status_code == 200
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    programs = agent.backend.programs()
    contents = [[call.content for call in calls] for calls in programs.values()]
    streamed = ["streamed head", "streamed part 1", "streamed part 2"]
    assert contents == [["whole head"], streamed, streamed]
    assert agent.programs()["whole head"] == "GET /whole"
    assert len(agent.backend.wait_for("DELETE", "/programs/", count=3)) == 3
    with pytest.raises(KeyError, match="users"):
        middleware({"REQUEST_METHOD": "GET", "PATH_INFO": "/fail"}, None)  # type: ignore[arg-type]
    assert autellix.current().is_implicit


def test_wsgi_body_that_is_not_sent_ends_its_program(agent: Agent) -> None:
    closed = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield b""

        def close(self) -> None:
            closed.append(True)

    def app(environ: object, start_response: object) -> Iterable[bytes]:
        agent.ask("head")
        return Body()

    body: Any = web.WsgiMiddleware(app)({"REQUEST_METHOD": "HEAD", "PATH_INFO": "/x"}, lambda *_: None)
    body.close()
    assert closed == [True]
    agent.backend.wait_for("DELETE", "/programs/")


class Request:
    """What the middleware reads of Django's requests."""

    method = "POST"
    path = "/chats/17/turns"


async def test_each_django_request_is_a_program(agent: Agent) -> None:
    def view(request: Request) -> str | None:
        return autellix.current().name

    async def async_view(request: Request) -> str | None:
        await asyncio.sleep(0)
        return autellix.current().name

    middleware = web.DjangoMiddleware(async_view)
    assert asyncio.iscoroutinefunction(middleware)
    assert web.DjangoMiddleware(view)(Request()) == "POST /chats/{id}/turns"
    assert await middleware(Request()) == "POST /chats/{id}/turns"


DJANGO = """
import asyncio, logging, sys
import autellix, django, openai
from django.conf import settings
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

logging.disable(logging.CRITICAL)
settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="key", USE_TZ=True,
    MIDDLEWARE=["autellix.web.DjangoMiddleware"],
)
django.setup()
client = openai.OpenAI(base_url=sys.argv[1], api_key="key")
aclient = openai.AsyncOpenAI(base_url=sys.argv[1], api_key="key")

def arguments(text):
    return {"model": "m", "messages": [{"role": "user", "content": text}]}

def sync_view(request, number):
    client.chat.completions.create(**arguments("head"))
    client.chat.completions.create(**arguments("tail"))
    return HttpResponse("sync")

async def async_view(request, number):
    await aclient.chat.completions.create(**arguments("head"))
    await asyncio.to_thread(client.chat.completions.create, **arguments("tail"))
    return HttpResponse("async")

urlpatterns = [path("sync/<int:number>", sync_view), path("async/<int:number>", async_view)]

async def main():
    for view in ("sync", "async"):
        assert (await AsyncClient().get(f"/{view}/7")).content.decode() == view
    await aclient.close()

assert Client().get("/sync/7").content == b"sync"
asyncio.run(main())
"""


def test_each_request_of_a_django_project_is_a_program(
    backend: Recording, run_script: Callable[..., str]
) -> None:
    """Sync and async views, under a sync server and an async one, in a process of their own."""
    pytest.importorskip("django")
    run_script(DJANGO, backend.url, AUTELLIX_BASE_URL=backend.url, PYTHONWARNINGS="ignore")
    names = [[(call.program_name, call.content) for call in calls] for calls in backend.programs().values()]
    sync, asynchronous = (
        [(f"GET /{view}/{{id}}", text) for text in ("head", "tail")] for view in ("sync", "async")
    )
    assert names == [sync, sync, asynchronous]
    assert len(backend.wait_for("DELETE", "/programs/", count=3)) == 3
