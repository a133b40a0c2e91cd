"""Defines what all scopes share: entering and leaving, as a block or around a function of any kind."""

from __future__ import annotations

import sys

from autellix._faults import safely
from autellix._programs.registry import programs
from autellix._programs.running import enter, find_running_thread, leave, running_thread
from autellix._programs.thread import ProgramThread
from autellix._sessions.keeper import keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


class Identity:
    """The identity of a call made at one place: what `autellix.current()` and a scope's `as` return."""

    __module__ = "autellix"
    __slots__ = {  # noqa: RUF023 - in the order of help()
        "program_id": "The program's id.",
        "name": "The program's name, or None.",
        "is_implicit": "Whether nobody has named the program: that of the process, a web request or a job.",
        "thread_id": "The number of the thread inside the program.",
        "session_id": "The session's id.",
    }

    program_id: str
    name: str | None
    is_implicit: bool
    thread_id: int
    session_id: str

    def __init__(self, thread: ProgramThread) -> None:
        self.program_id = thread.program.program_id
        self.name = thread.program.name
        self.is_implicit = thread.program.is_implicit
        self.thread_id = thread.thread_id
        self.session_id = (thread.open_session() or keeper.process_session).session_id

    def __repr__(self) -> str:
        return f"Identity(program_id={self.program_id!r}, name={self.name!r}, thread_id={self.thread_id})"


def identity_of(thread: ProgramThread | None) -> Identity:
    """Return the identity of calls in a program thread, or in the running one for None."""
    return Identity(thread or safely(running_thread) or ProgramThread(programs.implicit, None))


class Scope:
    """A block or a function whose calls belong together; any number of threads may enter it at once."""

    def __init__(self) -> None:
        self._entered: list[ProgramThread] = []

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process has not been entered there.
        return {**vars(self), "_entered": []}

    def _open(self, previous: ProgramThread | None) -> ProgramThread:
        """Return the program thread that runs inside."""
        raise NotImplementedError

    def _close(self, thread: ProgramThread) -> None:
        """Release what `_open` has opened."""

    def enter_at(self, frame: FrameType | None) -> ProgramThread | None:
        """Enter the scope for the code that runs at a frame; None if that fails, which changes nothing."""
        return safely(self._enter_at, frame)

    def _enter_at(self, frame: FrameType | None) -> ProgramThread:
        thread = self._open(find_running_thread())
        try:
            enter(thread, frame)
            self._entered.append(thread)
            return thread
        except BaseException:
            # A signal handler has raised: nothing may go on in a scope that nobody leaves.
            leave(thread)
            self._close(thread)
            raise

    def leave(self, thread: ProgramThread | None) -> None:
        """Leave what `enter_at` has entered."""
        if thread is not None:
            safely(self._leave, thread)

    def _leave(self, thread: ProgramThread) -> None:
        # First: nothing may go on in it if a signal handler raises.
        leave(thread)
        self._entered.remove(thread)
        self._close(thread)

    def _leave_innermost(self) -> None:
        running = find_running_thread()
        # Usually the innermost scope here; it may also have been entered elsewhere, or be left out of order.
        self._leave(running if running is not None and running in self._entered else self._entered[-1])

    def __enter__(self) -> Identity:
        return self._enter_block(sys._getframe(1))

    def _enter_block(self, frame: FrameType | None) -> Identity:
        thread = None
        try:
            thread = self.enter_at(frame)
            return identity_of(thread)
        except BaseException:
            self.leave(thread)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        safely(self._leave_innermost)

    async def __aenter__(self) -> Identity:
        return self._enter_block(sys._getframe(1))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        """Enter the scope around every run of the function.

        Raises:
            TypeError: if it is not a function, such as a class.
        """
        from autellix._scopes.decoration import decorate

        return decorate(self, function)
