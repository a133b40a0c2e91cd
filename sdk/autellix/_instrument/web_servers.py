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


def instrument_starlette(patches: Patches, module: ModuleType) -> None:
    """Make each request and websocket of Starlette and FastAPI a program."""
    patches.apply(module, "Starlette.__call__", _patch_asgi)


def instrument_flask(patches: Patches, module: ModuleType) -> None:
    """Make each request of Flask a program."""
    patches.apply(module, "Flask.__call__", _patch_wsgi)


def instrument_django(patches: Patches, module: ModuleType) -> None:
    """Make each request of Django a program, behind either kind of server."""
    if hasattr(module, "ASGIHandler"):
        patches.apply(module, "ASGIHandler.__call__", _patch_asgi)
    else:
        patches.apply(module, "WSGIHandler.__call__", _patch_wsgi)


def instrument_aiohttp(patches: Patches, module: ModuleType) -> None:
    """Make each request of aiohttp's server a program, until its body is sent."""
    patches.apply(module, "RequestHandler._handle_request", around_async(_open_request))


def instrument_streamlit(patches: Patches, module: ModuleType) -> None:
    """Make each run of a script a program, named after the script."""
    patches.apply(module, "ScriptRunner._run_script", around(_open_script))


def instrument_gradio(patches: Patches, module: ModuleType) -> None:
    """Make each event a program, named after its endpoint, until its generator is done."""
    patches.apply(module, "Queue.process_events", around_async(_open_event))


def _open_request(_: Any, request: Any, *_args: object, **_kwargs: object) -> OpenJob | None:
    from autellix.web import request_name

    return OpenJob(request_name(request.method, request.path)) if _may_begin() else None


def _open_script(runner: Any, *_args: object, **_kwargs: object) -> OpenJob | None:
    return OpenJob(runner._main_script_path.replace("\\", "/").rpartition("/")[2]) if _may_begin() else None


def _open_event(_: Any, events: Any, *_args: object, **_kwargs: object) -> OpenJob | None:
    return OpenJob(f"/{events[0].fn.api_name or events[0].fn.name}") if _may_begin() else None
