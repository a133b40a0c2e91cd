"""Follows what asgiref and FastAPI run in other threads: patches of both."""

from __future__ import annotations

import contextlib

from autellix._faults import safely
from autellix._instrument.spawns import link_submit
from autellix._programs.running import find_running_thread, running_thread, switch_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractContextManager
    from types import ModuleType, TracebackType
    from typing import Any

    from autellix._instrument.patches import Patches
    from autellix._programs.thread import ProgramThread


class _Dependency:
    """A sync dependency with `yield`; FastAPI enters and leaves it in worker threads."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager
        self._outer: ProgramThread | None = None
        self._inner: ProgramThread | None = None

    def __enter__(self) -> Any:
        self._outer = safely(running_thread)
        value = self._manager.__enter__()
        self._inner = safely(find_running_thread)
        return value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._manager.__exit__(kind, error, traceback)

    def hold(self) -> None:
        """Let the scopes that it has entered hold in the running task, where the endpoint is."""
        if self._inner is None or self._inner is self._outer:
            return
        around, scope = find_running_thread(), self._inner
        while scope.previous is not None and scope.previous is not self._outer:
            scope = scope.previous
        scope.previous = around
        switch_to(self._inner)


def _patch_in_threadpool(original: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.asynccontextmanager
    async def contextmanager_in_threadpool(
        cm: AbstractContextManager[Any], *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        dependency = _Dependency(cm)
        async with original(dependency, *args, **kwargs) as value:
            safely(dependency.hold)
            yield value

    return contextmanager_in_threadpool


def instrument_asgiref(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of `sync_to_async` that go back to the thread of a sync caller."""
    patches.apply(module, "CurrentThreadExecutor.submit", link_submit)


def instrument_fastapi(patches: Patches, module: ModuleType) -> None:
    """Let a scope in a sync dependency hold in the endpoint."""
    patches.apply(module, "contextmanager_in_threadpool", _patch_in_threadpool)
