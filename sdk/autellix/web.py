"""Makes each request of a web server a program, for ASGI, WSGI and Django.

FastAPI, Starlette, Flask, Django and aiohttp need none of this: `import autellix` does it. For others:

    app = autellix.web.AsgiMiddleware(app)
    app = autellix.web.WsgiMiddleware(app)
    MIDDLEWARE = ["autellix.web.DjangoMiddleware", ...]

The program is named after the request, such as "POST /chats/{id}". It is implicit: the run of a framework
inside it, such as a LangGraph root run, is a program of its own. A request with several of these around it is
one program.
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

IS_PROGRAM = "autellix.is_program"
"""The key of an ASGI scope or a WSGI environment whose request is a program already."""


class AsgiMiddleware:
    """ASGI middleware; each HTTP request and each websocket is a program."""

    def __init__(self, app: Asgi) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope.get("type") not in ("http", "websocket") or not _begins(scope):
            await self.app(scope, receive, send)
            return
        name = request_name(scope.get("method", "WEBSOCKET"), scope.get("path", ""))
        with ProgramScope(name, is_implicit=True):
            await self.app(scope, receive, send)


class WsgiMiddleware:
    """WSGI middleware; each request is a program until its body is complete."""

    def __init__(self, app: Wsgi) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve one request."""
        if not _begins(environ):
            return self.app(environ, start_response)
        name = request_name(environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", ""))
        program_id = ids.make("program")
        try:
            # The application makes the body later, in another turn of the same program.
            with ProgramScope(name, program_id, is_implicit=True, ends=False):
                body = self.app(environ, start_response)
        except BaseException:
            end_program(program_id)
            raise
        if isinstance(body, (list, tuple, environ.get("wsgi.file_wrapper", list))):
            # A server may send a file faster than it could send ours.
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
        server = getattr(request, "environ", None) or getattr(request, "scope", None)
        if server is not None and not _begins(server):
            return self.get_response(request)
        if self._is_async:
            return self._serve(request)
        with _program_of(request):
            return self.get_response(request)

    async def _serve(self, request: Any) -> Any:
        with _program_of(request):
            return await self.get_response(request)


def _program_of(request: Any) -> ProgramScope:
    return ProgramScope(request_name(request.method or "", request.path), is_implicit=True)


def _begins(server: dict[str, Any]) -> bool:
    """Return whether a request, given by what its server says of it, is no program yet; from now on it is."""
    begins = IS_PROGRAM not in server
    server[IS_PROGRAM] = True
    return begins


def request_name(method: object, path: object) -> str:
    """Return the name of a request's kind, with placeholders for ids in its path."""
    if not isinstance(method, str) or not isinstance(path, str):
        return "request"
    parts = [
        "{id}" if any(char.isdigit() for char in part) and part != "v1" else part for part in path.split("/")
    ]
    return f"{method} {'/'.join(parts)}"
