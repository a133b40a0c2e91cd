"""Defines a program: what its calls have in common, and the numbers of its threads."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import OrderedDict

from autellix._ids import ids
from autellix._open_scopes import OpenScopes
from autellix._programs.hints import NO_HINTS
from autellix._programs.progress import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque

    from autellix._programs.end_signal import EndSignal
    from autellix._programs.progress import Progress
    from autellix._sessions.session import Registration

MAX_NAMED_THREADS = 4096
MAX_REGISTRATIONS = 256
REMOTE_THREAD_IDS = 4096
"""How many thread ids each further process of a program may use."""


class ClientProgram:
    """One run of an agent, as this process sees it."""

    def __init__(
        self, name: str | None, program_id: str | None, *, is_implicit: bool = False, is_remote: bool = False
    ) -> None:
        self.name = name
        self.program_id = program_id or ids.make("program")
        self.has_chosen_id = program_id is not None
        self.is_implicit = is_implicit
        """Whether the user has not named it; the run of a framework inside opens a program of its own."""
        self.is_remote = is_remote
        """Whether another process owns the program and ends it."""
        self.ends = True
        """Whether leaving its last scope ends it; False if further turns may follow."""
        self.has_ended = False
        """Whether it has ended, or this turn of it; what still runs is in no program then."""
        self.end_signal: EndSignal | None = None
        """In a process that was started inside the program: signals its end."""
        self.scopes = OpenScopes()
        self.hints = NO_HINTS
        """What its user says about it."""
        self._reset()

    def _reset(self) -> None:
        self.has_called = False
        self.processes: list[EndSignal] = []
        """The signals for processes started inside it."""
        self.calls_made = 0
        self.registrations: dict[Registration, None] = {}
        """Of the sessions that its calls were in: where its end is reported."""
        self.engines: dict[int, deque[str]] = {}
        """Of each engine of this process that it has called, the ends that wait for the next request."""
        self.frontier: tuple[str, ...] | None = ()
        """The frontier after the last turn, for a program of several turns."""
        self.free_thread_ids: list[int] = []
        self.named_thread_ids: OrderedDict[str, int] = OrderedDict()
        self._next_thread_id = itertools.count(os.getpid() * REMOTE_THREAD_IDS if self.is_remote else 0)

    def note_registration(self, registration: Registration) -> None:
        """Note where a call goes; the places of long ago are forgotten."""
        if registration not in self.registrations:
            self.registrations[registration] = None
            if len(self.registrations) > MAX_REGISTRATIONS:
                self.registrations.pop(next(iter(self.registrations)), None)

    def after_fork_in_child(self) -> None:
        """Become the child's own program; keep an id that the user has chosen."""
        if self.has_chosen_id:
            # The parent keeps the program and ends it, so the child's threads need numbers of their own.
            self.is_remote = True
        else:
            self.program_id = ids.make("program")
        self._reset()

    def end(self) -> None:
        """Note that it has ended, here and in the processes started inside it."""
        self.has_ended = True
        while self.processes:
            self.processes.pop().send()

    def look_for_end(self) -> bool:
        """Return whether it has ended, here or in the process that has opened it."""
        if self.end_signal is not None and not self.has_ended:
            self.has_ended = self.end_signal.has_come()
        return self.has_ended

    def next_turn(self) -> ClientProgram:
        """End this turn, and return the program as its next turn continues it.

        Another object: what still runs of this turn, such as a worker, is not part of the next.
        """
        self.end()
        turn = object.__new__(ClientProgram)
        vars(turn).update(vars(self), has_ended=False, processes=[], scopes=OpenScopes())
        return turn

    def leave_turn(self, progress: Progress) -> None:
        """Note where one of its scopes has ended: the next turn follows all that ran at once."""
        join(self, progress.frontier, progress.inherited)

    def take_thread_id(self) -> int:
        """Return a thread id that no live thread of this program has."""
        try:
            return self.free_thread_ids.pop()
        except IndexError:
            return next(self._next_thread_id)

    def thread_id_of(self, name: str) -> int:
        """Return the thread id of a thread that the user has named; it is never reused.

        The names used longest ago are forgotten: the implicit program of a server lasts for ever.
        """
        thread_id = self.named_thread_ids.get(name)
        if thread_id is None:
            fresh = self.take_thread_id()
            # setdefault: two threads that use a name first share its number.
            thread_id = self.named_thread_ids.setdefault(name, fresh)
            if thread_id != fresh:
                self.free_thread_ids.append(fresh)
        with contextlib.suppress(KeyError):
            self.named_thread_ids.move_to_end(name)
        while len(self.named_thread_ids) > MAX_NAMED_THREADS:
            self.named_thread_ids.popitem(last=False)
        return thread_id
