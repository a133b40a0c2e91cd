"""Defines the functions by which users open scopes and carry them elsewhere."""

from __future__ import annotations

import functools

from autellix._faults import safely
from autellix._programs.hints import ProgramHints
from autellix._programs.running import running_thread
from autellix._scopes.scope import Identity, identity_of
from autellix._scopes.scopes import BranchScope, DetachedScope, ProgramScope, SessionScope, ThreadScope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


def current() -> Identity:
    """Return the program, thread and session of a call made here."""
    return identity_of(None)


def warn_of_old(old: str, new: str) -> None:
    """Warn the user's code, two frames further out, of a spelling that the next version refuses."""
    import warnings

    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)


def _with_old_spelling(function: F) -> F:
    """Take the id as the last positional argument too, and `ends` for the contrary of `continues`."""
    places = function.__code__.co_argcount
    what = function.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) == places + 1 and "id" not in kwargs:
            if isinstance(args[-1], str):
                warn_of_old(f"{what}() with an id by position", "`id=...`")
            args, kwargs = args[:-1], {**kwargs, "id": args[-1]}
        if "ends" in kwargs:
            warn_of_old(f"{what}(ends=False)", "`continues=True`")
            kwargs["continues"] = not kwargs.pop("ends")
        return function(*args, **kwargs)

    return functools.update_wrapper(call, function)  # type: ignore[return-value]


@_with_old_spelling
def program(
    name: str | None = None,
    *,
    id: str | None = None,  # noqa: A002 - the word users expect
    group: str | None = None,
    expected_calls: int | None = None,
    expected_tokens: int | None = None,
    priority: Literal["interactive", "default", "batch"] | None = None,
    continues: bool = False,
) -> ProgramScope:
    """Mark calls as one program; use it in `with` or `async with`, or as a decorator of any kind of function.

    Args:
        name: its class, such as "react"; programs of one class behave alike.
        id: its id, if you have one; without it every entry is a new program.
        group: what it shares with programs of the same task, such as rollouts of one prompt: the gateway then
            shows which of them takes longest.
        expected_calls: how many calls you expect; a rough number helps: a short program then goes first.
        expected_tokens: how many tokens you expect its calls to generate in all.
        priority: how urgent it is beside your other programs: "interactive", "default" or "batch".
        continues: whether it goes on when its last scope is left: another turn with the same id follows, such
            as that of a conversation, or another process has opened it and passed the id here by a queue or a
            command line. A turn without it is the last one.

    Raises:
        TypeError: if the name, id or group is not text, as in a decorator without parentheses.
        ValueError: if the id or group is not 1 to 256 printable ASCII characters, an expectation is not a
            whole number above zero, or the priority is not one of the three.
    """
    return ProgramScope(
        name,
        id,
        hints=ProgramHints(
            group=group, priority=priority, expected_calls=expected_calls, expected_tokens=expected_tokens
        ),
        ends=not continues,
    )


def thread(name: str | None = None) -> ThreadScope:
    """Mark calls as one thread of the running program, such as one agent of a team.

    Tasks, operating system threads and jobs are threads without it. Use it for a role that several of them
    fill in turn, or that one of them fills for a while. It does not change the order of calls.

    Args:
        name: scopes with the same name are one thread of the program; without it every entry is a new one.

    Raises:
        TypeError: if the name is not text, as in a decorator without parentheses.
    """
    return ThreadScope(name)


@_with_old_spelling
def session(
    *,
    id: str | None = None,  # noqa: A002 - the word users expect
    step: int | None = None,
    continues: bool = False,
) -> SessionScope:
    """Group the programs inside into one session, such as a conversation, instead of that of the process.

    Args:
        id: its id; scopes with the same id are one session. Without it every entry is a new session.
        step: the number of a training step, in place of an id: leaving it ends the programs that the step has
            left.
        continues: whether it goes on when its last scope is left, because scopes with the same id follow.

    Raises:
        TypeError: if the id is not text.
        ValueError: if the id is not 1 to 256 printable ASCII characters, or the step is no whole number or
            comes with an id.
    """
    return SessionScope(id, step=step, ends=not continues)


def propagate(function: F) -> F:
    """Run every call of a function as a branch of the thread that is running now, from any place.

    Use it where the client cannot follow: your own work queues, and callbacks of other libraries. It takes
    any kind of function: plain, async, generators and async generators.

    Raises:
        TypeError: if it is not a function.
    """
    origin = safely(lambda: running_thread().branch())
    return function if origin is None else BranchScope(origin)(function)


def detached() -> DetachedScope:
    """Keep what runs or is started inside out of the caller's program; use it in `with` or as a decorator.

    For a thread or task that serves other programs as well, such as the worker of a queue that the first one
    starts: its calls would be that one's for as long as it is open, and a task would keep it open.

        with autellix.detached():
            worker = threading.Thread(target=serve, daemon=True)
            worker.start()
    """
    return DetachedScope()
