"""Makes each request of a web framework a program, and each run of a Streamlit script and event of Gradio."""

from __future__ import annotations

from autellix._faults import safely
from autellix._instrument.jobs import OpenJob
from autellix._instrument.patches import around, around_async
from autellix._programs.running import running_thread
from autellix._propagation import propagation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches


def _may_begin() -> bool:
    """Return whether a request may be a program: not inside a scope that the user has opened."""
    return propagation.is_on and running_thread().program.is_implicit


def _patch_asgi(original: Callable[..., Any]) -> Callable[..., Any]:
    from autellix.web import AsgiMiddleware

    # With the original's parameters: Uvicorn calls an application without any to see whether it is a factory.
    async def serve(self: Any, scope: Any, receive: Any, send: Any, *args: Any, **kwargs: Any) -> Any:
        def app(*given: Any) -> Any:
            return original(self, *given, *args, **kwargs)

        return await (AsgiMiddleware(app) if safely(_may_begin) else app)(scope, receive, send)

    return serve


def _patch_wsgi(original: Callable[..., Any]) -> Callable[..., Any]:
    from autellix.web import WsgiMiddleware

    def serve(self: Any, environ: Any, start_response: Any, *args: Any, **kwargs: Any) -> Any:
        def app(*given: Any) -> Any:
            return original(self, *given, *args, **kwargs)

        return (WsgiMiddleware(app) if safely(_may_begin) else app)(environ, start_response)

    return serve


def _open(name: str) -> OpenJob | None:
    return OpenJob(name) if _may_begin() else None


def _open_request(_: Any, request: Any, *_args: object, **_kwargs: object) -> OpenJob | None:
    from autellix.web import request_name

    return _open(request_name(request.method, request.path))


def _open_script(runner: Any, *_args: object, **_kwargs: object) -> OpenJob | None:
    return _open(runner._main_script_path.replace("\\", "/").rpartition("/")[2])


def _open_event(_: Any, events: Any, *_args: object, **_kwargs: object) -> OpenJob | None:
    return _open(f"/{events[0].fn.api_name or events[0].fn.name}")


PATCHES = {
    "aiohttp.web_protocol": ("RequestHandler._handle_request", around_async(_open_request)),
    "django.core.handlers.asgi": ("ASGIHandler.__call__", _patch_asgi),
    "django.core.handlers.wsgi": ("WSGIHandler.__call__", _patch_wsgi),
    "flask.app": ("Flask.__call__", _patch_wsgi),
    "gradio.queueing": ("Queue.process_events", around_async(_open_event)),
    "starlette.applications": ("Starlette.__call__", _patch_asgi),
    "streamlit.runtime.scriptrunner.script_runner": ("ScriptRunner._run_script", around(_open_script)),
}
"""What serves a request, runs a script, or handles an event with all steps of its generator."""


def instrument_requests(patches: Patches, module: ModuleType) -> None:
    """Make each request that the module serves a program."""
    patches.apply(module, *PATCHES[module.__name__])
