"""Each request is a program without the middleware, and one with it; each test needs its framework."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults

import pytest

import autellix
from autellix import web
from autellix._instrument.patches import Patches
from autellix._instrument.web_servers import instrument_requests
from autellix._programs import generators
from autellix._programs.registry import programs
from autellix._scopes.scopes import ProgramScope

Place = tuple[str | None, str, bool]


def here() -> Place:
    identity = autellix.current()
    return identity.name, identity.program_id, identity.is_implicit


@pytest.fixture(autouse=True)
def _nothing_is_left(sdk: None) -> Iterator[None]:
    yield
    assert not generators.open_scopes
    assert not programs._open
    assert here()[0] is None


def expect_programs(places: list[list[Place]], name: str) -> None:
    """Each request was one program of its own, implicit and named so."""
    assert [len(set(seen)) for seen in places] == [1] * len(places)
    assert {seen[0][0] for seen in places} == {name}
    assert len({seen[0][1] for seen in places}) == len(places)
    assert all(seen[0][2] for seen in places)


class Asgi:
    """The server's side of one request at a time."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def get(self, path: str) -> bytes:
        sent: list[dict[str, Any]] = []
        waits = asyncio.Event()
        received = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            message = next(received, None)
            if message is None:
                await waits.wait()
            return message or {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"app")],
            "server": ("app", 80),
            "client": ("127.0.0.1", 1),
        }
        await self._app(scope, receive, send)
        return b"".join(message.get("body", b"") for message in sent)


def starlette_app(seen: dict[str, list[Place]], *, has_middleware: bool) -> Any:
    applications: Any = pytest.importorskip("starlette.applications")
    routing: Any = pytest.importorskip("starlette.routing")
    responses: Any = pytest.importorskip("starlette.responses")

    async def answer(request: Any) -> Any:
        places = seen.setdefault(request.url.path, [])
        places.append(here())

        async def body() -> AsyncIterator[bytes]:
            await asyncio.sleep(0)
            places.append(here())
            yield b"body"

        await asyncio.create_task(asyncio.sleep(0))
        places.append(here())
        return responses.StreamingResponse(body())

    routes = [routing.Route("/users/{user}", answer)]
    # A part of an application is an application too.
    app = applications.Starlette(routes=[routing.Mount("/api", applications.Starlette(routes=routes))])
    if has_middleware:
        app.add_middleware(web.AsgiMiddleware)
    return app


@pytest.mark.parametrize("has_middleware", [False, True])
async def test_each_request_of_starlette_is_one_program(has_middleware: bool) -> None:
    seen: dict[str, list[Place]] = {}
    server = Asgi(starlette_app(seen, has_middleware=has_middleware))
    bodies = await asyncio.gather(*(server.get(f"/api/users/{number}") for number in range(4)))
    assert bodies == [b"body"] * 4
    expect_programs(list(seen.values()), "GET /api/users/{id}")


async def test_a_server_can_tell_an_application_from_a_factory() -> None:
    """Uvicorn calls what it gets without arguments, and takes no error for a factory."""
    app = starlette_app({}, has_middleware=False)
    assert inspect.iscoroutinefunction(app.__call__)
    with pytest.raises(TypeError):
        app()


async def test_a_request_that_another_one_starts_is_a_program_of_its_own() -> None:
    """As a server does with pipelined requests: it begins the next one where the last one has ended."""
    seen: dict[str, list[Place]] = {}
    server = Asgi(starlette_app(seen, has_middleware=False))
    with ProgramScope("GET /before", is_implicit=True):
        await asyncio.create_task(server.get("/api/users/1"))
    expect_programs(list(seen.values()), "GET /api/users/{id}")


async def test_a_scope_around_a_request_decides() -> None:
    seen: dict[str, list[Place]] = {}
    server = Asgi(starlette_app(seen, has_middleware=False))
    with autellix.program("test"):
        await server.get("/api/users/1")
    assert {place[0] for place in seen["/api/users/1"]} == {"test"}


async def test_the_run_of_a_framework_in_a_request_is_a_program_of_its_own() -> None:
    from autellix.integration import root_scope

    applications: Any = pytest.importorskip("starlette.applications")
    found = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(root_scope("graph") is not None)

    starlette = applications.Starlette()
    starlette.middleware_stack = app
    await Asgi(starlette).get("/")
    assert found == [True]


def wsgi_get(app: Any, path: str, **environ: Any) -> Iterable[bytes]:
    environment: dict[str, Any] = {"PATH_INFO": path, **environ}
    setup_testing_defaults(environment)
    body: Iterable[bytes] = app(environment, lambda *_: None)
    return body


def read_all(body: Any) -> bytes:
    try:
        return b"".join(body)
    finally:
        getattr(body, "close", lambda: None)()


@pytest.mark.parametrize("has_middleware", [False, True])
def test_each_request_of_flask_is_one_program(has_middleware: bool) -> None:
    flask: Any = pytest.importorskip("flask")
    app = flask.Flask("app")
    seen: dict[str, list[Place]] = {}

    @app.get("/users/<user>")  # type: ignore[untyped-decorator]
    def answer(user: str) -> Iterator[str]:
        seen[user] = [here()]

        def body() -> Iterator[str]:
            seen[user].append(here())
            yield "body"

        return body()

    if has_middleware:
        app.wsgi_app = web.WsgiMiddleware(app.wsgi_app)
    bodies = []
    threads = [
        threading.Thread(
            target=lambda number=number: bodies.append(read_all(wsgi_get(app, f"/users/{number}")))
        )
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodies == [b"body"] * 4
    expect_programs(list(seen.values()), "GET /users/{id}")


def test_a_file_is_left_to_the_server() -> None:
    """Which may send it without reading it."""

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        return environ["wsgi.file_wrapper"](__file__)

    body = wsgi_get(web.WsgiMiddleware(app), "/", **{"wsgi.file_wrapper": FileWrapper})
    assert type(body) is FileWrapper


@pytest.fixture
def django_seen() -> Iterator[dict[str, list[Place]]]:
    django: Any = pytest.importorskip("django")
    conf: Any = pytest.importorskip("django.conf")
    http: Any = pytest.importorskip("django.http")
    urls: Any = pytest.importorskip("django.urls")
    seen: dict[str, list[Place]] = {}

    def answer(request: Any, user: str) -> Any:
        seen[user] = [here()]

        def body() -> Iterator[str]:
            seen[user].append(here())
            yield "body"

        return http.StreamingHttpResponse(body())

    async def async_answer(request: Any, user: str) -> Any:
        seen[user] = [here()]
        await asyncio.sleep(0)

        async def body() -> AsyncIterator[str]:
            seen[user].append(here())
            yield "body"

        return http.StreamingHttpResponse(body())

    routes: Any = ModuleType("routes")
    routes.urlpatterns = [urls.path("users/<user>", answer), urls.path("async/<user>", async_answer)]
    if not conf.settings.configured:
        conf.settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="key")
        django.setup()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conf.settings, "ROOT_URLCONF", routes, raising=False)
        urls.clear_url_caches()
        yield seen


@pytest.mark.parametrize("middleware", [[], ["autellix.web.DjangoMiddleware"]])
def test_each_request_of_django_is_one_program(
    django_seen: dict[str, list[Place]], middleware: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    monkeypatch.setattr(import_module("django.conf").settings, "MIDDLEWARE", middleware, raising=False)
    app = import_module("django.core.handlers.wsgi").WSGIHandler()
    assert [read_all(wsgi_get(app, f"/users/{number}")) for number in range(3)] == [b"body"] * 3
    expect_programs(list(django_seen.values()), "GET /users/{id}")


@pytest.mark.parametrize("middleware", [[], ["autellix.web.DjangoMiddleware"]])
async def test_each_request_of_django_behind_asgi_is_one_program(
    django_seen: dict[str, list[Place]], middleware: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    monkeypatch.setattr(import_module("django.conf").settings, "MIDDLEWARE", middleware, raising=False)
    server = Asgi(import_module("django.core.handlers.asgi").ASGIHandler())
    bodies = await asyncio.gather(*(server.get(f"/async/{number}") for number in range(3)))
    assert bodies == [b"body"] * 3
    expect_programs(list(django_seen.values()), "GET /async/{id}")


async def test_each_request_of_aiohttp_is_one_program() -> None:
    aiohttp: Any = pytest.importorskip("aiohttp")
    server: Any = pytest.importorskip("aiohttp.web")
    seen: dict[str, list[Place]] = {}

    async def answer(request: Any) -> Any:
        places = seen.setdefault(request.path, [])
        places.append(here())

        async def body() -> AsyncIterator[bytes]:
            places.append(here())
            yield b"body"

        return server.Response(body=body())

    app = server.Application()
    app.router.add_get("/users/{user}", answer)
    runner = server.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await server.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as client:

            async def get(number: int) -> str:
                async with client.get(f"{address}/users/{number}") as response:
                    text: str = await response.text()
                    return text

            assert await asyncio.gather(*map(get, range(4))) == ["body"] * 4
            # On a connection that is open already.
            assert await get(4) == "body"
    finally:
        await runner.cleanup()
    expect_programs(list(seen.values()), "GET /users/{id}")


def made_up(name: str, **classes: type) -> Patches:
    module = ModuleType(name)
    vars(module).update(classes)
    patches = Patches()
    instrument_requests(patches, module)
    assert patches.missing == []
    return patches


def test_each_run_of_a_streamlit_script_is_a_program() -> None:
    class ScriptRunner:
        _main_script_path = "/apps/chat.py"

        def _run_script(self, rerun_data: object) -> None:
            seen.append([here()])

    seen: list[list[Place]] = []
    patches = made_up("streamlit.runtime.scriptrunner.script_runner", ScriptRunner=ScriptRunner)
    ScriptRunner()._run_script(None)
    ScriptRunner()._run_script(rerun_data=None)
    expect_programs(seen, "chat.py")
    patches.revert()


async def test_each_event_of_gradio_is_a_program() -> None:
    class Queue:
        async def process_events(self, events: list[Any], batch: bool) -> None:
            place = here()
            await asyncio.sleep(0)
            seen.append([place, here()])

    seen: list[list[Place]] = []
    patches = made_up("gradio.queueing", Queue=Queue)
    event = SimpleNamespace(fn=SimpleNamespace(api_name="chat", name="answer"))
    await asyncio.gather(*(Queue().process_events([event], False) for _ in range(2)))
    expect_programs(seen, "/chat")
    patches.revert()
