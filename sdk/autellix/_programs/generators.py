"""Keeps the scopes that generators have open.

Such a scope belongs to the generator's frame, not to the thread or task. It holds where that frame is on the
stack: it waits while the generator is suspended, independent of the code that drives it, and the generator's
consumer never sees it. The stack is walked only while such scopes are open.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

    from autellix._programs.thread import ProgramThread

GENERATOR_FLAGS = 0x20 | 0x200
"""Of code objects: generators and async generators, but not coroutines."""
FIXTURE_TASKS = "pytest_asyncio.plugin"
"""The module that runs each async fixture and each test in a task of its own, from one thread."""
SCOPE_HELPERS = frozenset(
    {
        *("contextlib", "_pytest.fixtures", FIXTURE_TASKS, "taskiq_dependencies.ctx"),
        # For the fixtures of AnyIO's plugin, which runs them and the tests in one task.
        *("anyio._backends._asyncio", "anyio._backends._trio", "trio._core._run"),
    }
)
"""Modules that drive a generator for the scope it opens: the scope is for the code around the generator."""

boundaries: dict[int, CodeType] = {}
"""Code that runs a thread of its own on another one's stack; scopes further out do not hold inside.

Keyed by identity: hashing code reads all of its instructions, at each look-up.
"""
open_scopes: dict[FrameType, ProgramThread] = {}
"""The innermost open scope of each generator."""


def owner_of(frame: FrameType | None) -> FrameType | None:
    """Return the generator that opens a scope at a frame, or None if no generator would suspend with it."""
    while frame is not None:
        if frame.f_globals.get("__name__") in SCOPE_HELPERS:
            frame = frame.f_back
        elif not frame.f_code.co_flags & GENERATOR_FLAGS:
            return None
        elif frame.f_back is not None and frame.f_back.f_globals.get("__name__") in SCOPE_HELPERS:
            frame = frame.f_back
        else:
            return frame
    return None


def is_in_fixture(frame: FrameType | None) -> bool:
    """Return whether a generator at a frame is an async fixture with a task of its own."""
    while frame is not None and (
        frame.f_code.co_flags & GENERATOR_FLAGS or frame.f_globals.get("__name__") in SCOPE_HELPERS
    ):
        if frame.f_globals.get("__name__") == FIXTURE_TASKS:
            return True
        frame = frame.f_back
    return False


def open_scope(scope: ProgramThread, owner: FrameType) -> None:
    scope.frame = owner
    open_scopes[owner] = scope


def close_scope(owner: FrameType) -> None:
    """Restore the next open scope of the generator."""
    outer = _first_open(open_scopes.get(owner))
    if outer is None:
        open_scopes.pop(owner, None)
    else:
        open_scopes[owner] = outer


def add_boundary(code: CodeType) -> None:
    """Keep scopes from further out from holding inside a function, given by its code."""
    boundaries[id(code)] = code


def innermost(frame: FrameType | None, outermost: FrameType | None) -> ProgramThread | None:
    """Return the scope of the innermost generator that has one open, from a frame up to the outermost one."""
    while frame is not None:
        if frame in open_scopes and (scope := _first_open(open_scopes.get(frame))) is not None:
            return scope
        if frame is outermost or id(frame.f_code) in boundaries:
            return None
        frame = frame.f_back
    return None


def _first_open(scope: ProgramThread | None) -> ProgramThread | None:
    """Return the scope, or the first one around it in the same generator, that is open."""
    while scope is not None and scope.is_closed:
        outer = scope.previous
        scope = outer if outer is not None and outer.frame is scope.frame else None
    return scope
