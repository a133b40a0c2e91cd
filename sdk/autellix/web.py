"""Makes each request of a web server a program, for ASGI, WSGI and Django.

    app.add_middleware(autellix.web.AsgiMiddleware)           # FastAPI, Starlette
    app.wsgi_app = autellix.web.WsgiMiddleware(app.wsgi_app)  # Flask
    MIDDLEWARE = ["autellix.web.DjangoMiddleware", ...]       # Django

The program is named after the request, such as "POST /chats/{id}". It is implicit: the run of a framework
inside it, such as a LangGraph root run, is a program of its own.
"""

from __future__ import annotations

from autellix._ids import ids
from autellix._scopes.scopes import ProgramScope, end_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from typing import Any

    Asgi = Callable[..., Awaitable[None]]
    Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

__all__ = ["AsgiMiddleware", "DjangoMiddleware", "WsgiMiddleware"]


class AsgiMiddleware:
    """ASGI middleware; each HTTP request and each websocket is a program."""

    def __init__(self, app: Asgi) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope.get("type") not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        name = _name(scope.get("method", "WEBSOCKET"), scope.get("path", ""))
        with ProgramScope(name, is_implicit=True):
            await self.app(scope, receive, send)


class WsgiMiddleware:
    """WSGI middleware; each request is a program until its body is complete."""

    def __init__(self, app: Wsgi) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve one request."""
        name = _name(environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", ""))
        program_id = ids.make("program")
        try:
            # The application makes the body later, in another turn of the same program.
            with ProgramScope(name, program_id, is_implicit=True, ends=False):
                body = self.app(environ, start_response)
        except BaseException:
            end_program(program_id)
            raise
        if isinstance(body, list | tuple):
            end_program(program_id)
            return body
        return _Body(body, name, program_id)


class _Body:
    """A response body that is made while it is sent, in the program of its request."""

    def __init__(self, body: Iterable[bytes], name: str, program_id: str) -> None:
        self._body = body
        self._name = name
        self._program_id = program_id

    def __iter__(self) -> Iterator[bytes]:
        with ProgramScope(self._name, self._program_id, is_implicit=True):
            yield from self._body

    def close(self) -> None:
        """Close the application's body; servers must, even if they have not sent it."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            end_program(self._program_id)


class DjangoMiddleware:
    """Django middleware, for sync and async views; each request is a program until its response.

    A streaming response makes its body later, outside of the program: decorate its generator with
    `autellix.program`.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        import inspect

        self.get_response = get_response
        self._is_async = inspect.iscoroutinefunction(get_response)
        if self._is_async:
            mark = getattr(inspect, "markcoroutinefunction", None)
            if mark is not None:
                mark(self)
            else:
                # Before Python 3.12, asyncio.iscoroutinefunction checks this attribute.
                from asyncio import coroutines

                self._is_coroutine = coroutines._is_coroutine  # type: ignore[attr-defined]

    def __call__(self, request: Any) -> Any:
        """Serve one request."""
        if self._is_async:
            return self._serve(request)
        with _program_of(request):
            return self.get_response(request)

    async def _serve(self, request: Any) -> Any:
        with _program_of(request):
            return await self.get_response(request)


def _program_of(request: Any) -> ProgramScope:
    return ProgramScope(_name(request.method or "", request.path), is_implicit=True)


def _name(method: object, path: object) -> str:
    """Name a request by its kind, with placeholders for ids in its path."""
    if not isinstance(method, str) or not isinstance(path, str):
        return "request"
    parts = [
        "{id}" if any(char.isdigit() for char in part) and part != "v1" else part for part in path.split("/")
    ]
    return f"{method} {'/'.join(parts)}"
