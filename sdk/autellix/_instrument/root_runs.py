"""Makes each root run of an agent framework a program: a wrapper for the entry points of `switch.ROOT_RUNS`.

A root run starts where no program has been named. A run inside it, such as that of a sub-agent, is a thread
with the agent's name.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref

from autellix._faults import safely
from autellix._instrument.switch import ROOT_RUNS
from autellix._programs.running import switch_to
from autellix._propagation import propagation
from autellix._scopes.scopes import ThreadScope, root_scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from types import FrameType, ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches
    from autellix._programs.thread import ProgramThread
    from autellix._scopes.scope import Scope

MARKS = {"agents.run": "DEFAULT_AGENT_RUNNER", "workflows.workflow": "WorkflowMeta"}
"""A name in each module that may also be the user's own, such as of a folder `agents`."""


class RunScope:
    """The scope of one run: a program, or inside a named one a thread."""

    __slots__ = ("_name", "_scope", "_thread_name")

    def __init__(self, subject: Any) -> None:
        self._thread_name = _name_of(subject)
        self._name = self._thread_name or type(subject).__name__
        self._scope: Scope | None = None

    def enter_at(self, frame: FrameType | None) -> ProgramThread | None:
        """Enter it for the code that runs at a frame; None if there is nothing to enter."""
        return safely(self._enter_at, frame) if propagation.is_on else None

    def _enter_at(self, frame: FrameType | None) -> ProgramThread | None:
        # The steps of a run, such as the modules of DSPy, have no names: they are part of its thread.
        self._scope = root_scope(self._name) or (ThreadScope(None) if self._thread_name else None)
        thread = None if self._scope is None else self._scope.enter_at(frame)
        if thread is not None and isinstance(self._scope, ThreadScope):
            thread.name = self._thread_name
        return thread

    def leave(self, thread: ProgramThread | None) -> None:
        """Leave what `enter_at` has entered."""
        if self._scope is not None:
            self._scope.leave(thread)


def _name_of(subject: Any) -> str | None:
    for attribute in ("name", "role"):
        name = getattr(subject, attribute, None)
        if isinstance(name, str) and name:
            return name
    # Google's runners have the agent.
    agent = getattr(subject, "agent", None)
    return None if agent is None else _name_of(agent)


def instrument_root_runs(patches: Patches, module: ModuleType) -> None:
    """Wrap the module's entry points."""
    # CrewAI copies names of other modules into its own, `__name__` included.
    name = next((known for known in ROOT_RUNS if sys.modules.get(known) is module), module.__name__)
    if not hasattr(module, MARKS.get(name, "__name__")):
        return
    for row in ROOT_RUNS[name].split():
        path, _, argument = row.partition(":")
        patches.apply(module, path, functools.partial(_patch_run, argument))


def _patch_run(argument: str, original: Callable[..., Any]) -> Callable[..., Any]:
    import inspect

    from autellix._scopes.decoration import decorate

    def run(*args: Any, **kwargs: Any) -> Any:
        scope = safely(lambda: RunScope(kwargs.get(argument) or args[1 if argument else 0]))
        if scope is None:
            return original(*args, **kwargs)
        return _kept(scope, decorate(scope, original)(*args, **kwargs))

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        return await run(*args, **kwargs)

    return run_async if inspect.iscoroutinefunction(original) else run


def _kept(scope: RunScope, result: Any) -> Any:
    """Return the result of a run; what it does while the user holds it is in the scope too."""
    if isinstance(result, contextlib.AsyncContextDecorator):
        return _around(scope, result)
    if hasattr(result, "with_pull_context_manager"):
        safely(_keep_stream, scope, result)
    return result


@contextlib.asynccontextmanager
async def _around(scope: RunScope, manager: Any) -> AsyncGenerator[Any]:
    thread = scope.enter_at(sys._getframe())
    try:
        async with manager as value:
            yield value
    finally:
        scope.leave(thread)


def _keep_stream(scope: RunScope, stream: Any) -> None:
    """Let a stream of the Microsoft Agent Framework run in the scope whenever its consumer asks for more."""
    before = switch_to(None)
    switch_to(before)
    thread = scope.enter_at(None)
    switch_to(before)
    if thread is not None:
        end = weakref.finalize(stream, scope.leave, thread)
        end.atexit = False
        stream.with_cleanup_hook(end)
        stream.with_pull_context_manager(functools.partial(_switched_to, thread))


@contextlib.contextmanager
def _switched_to(thread: ProgramThread) -> Iterator[None]:
    before = safely(switch_to, thread)
    try:
        yield
    finally:
        safely(switch_to, before)
