"""Defines the functions by which users open scopes and carry them elsewhere."""

from __future__ import annotations

import functools

from autellix._programs import generators
from autellix._programs.branches import BranchFunction
from autellix._programs.running import running_thread, switch_to
from autellix._scopes.scope import CurrentIdentity
from autellix._scopes.scopes import ProgramScope, SessionScope, ThreadScope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


def current() -> CurrentIdentity:
    """Return the program, thread and session of a call made here."""
    return CurrentIdentity(running_thread())


def program(
    name: str | None = None,
    id: str | None = None,  # noqa: A002 - the word users expect
    *,
    expected_calls: int | None = None,
    expected_tokens: int | None = None,
    ends: bool = True,
) -> ProgramScope:
    """Mark calls as one program; use it in `with` or `async with`, or as a decorator of any kind of function.

    Args:
        name: its class, such as "react"; programs of one class behave alike.
        id: its id, if you have one; without it every entry is a new program.
        expected_calls: how many calls you expect, for the policy `hinted`; a rough number helps.
        expected_tokens: how many tokens you expect its calls to generate in all, for the same policy.
        ends: whether leaving its last scope ends it; False if another turn with the same id may follow.

    Raises:
        ValueError: if the id is not 1 to 256 printable ASCII characters, or an expectation is not a whole
            number above zero.
    """
    return ProgramScope(name, id, expected_calls=expected_calls, expected_tokens=expected_tokens, ends=ends)


def thread(name: str | None = None) -> ThreadScope:
    """Mark calls as one thread of the running program, such as one agent of a team.

    Tasks, operating system threads and jobs are threads without it. Use it for a role that several of them
    fill in turn, or that one of them fills for a while. It does not change the order of calls.

    Args:
        name: scopes with the same name are one thread of the program; without it every entry is a new one.
    """
    return ThreadScope(name)


def session(
    id: str | None = None,  # noqa: A002 - the word users expect
    *,
    ends: bool = True,
) -> SessionScope:
    """Group the programs inside into one session, such as a conversation, instead of that of the process.

    Args:
        id: its id; scopes with the same id are one session. Without it every entry is a new session.
        ends: whether leaving its last scope ends it; False if scopes with the same id may follow.

    Raises:
        ValueError: if the id is not 1 to 256 printable ASCII characters.
    """
    return SessionScope(id, ends=ends)


def propagate(function: F) -> F:
    """Run every call of a function as a branch of the thread that is running now, from any place.

    Use it where the client cannot follow: your own work queues, and callbacks of other libraries.
    """
    import inspect

    branches = BranchFunction(running_thread().branch(), function)

    if inspect.iscoroutinefunction(function):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            branch = branches.new_branch()
            before = switch_to(branch)
            try:
                return await function(*args, **kwargs)
            finally:
                branch.is_closed = True
                switch_to(before)

        generators.boundaries.add(run_async.__code__)
        return functools.update_wrapper(run_async, function)  # type: ignore[return-value]

    def run(*args: Any, **kwargs: Any) -> Any:
        return branches(*args, **kwargs)

    return functools.update_wrapper(run, function)  # type: ignore[return-value]
