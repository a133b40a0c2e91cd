"""Keeps the programs of this process that are open, or suspended between two turns."""

from __future__ import annotations

import threading
from collections import OrderedDict

from autellix._programs.program import ClientProgram

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from autellix._programs.progress import Progress

MAX_SUSPENDED = 4096


class ProgramRegistry:
    """The programs by id, and the implicit program of the process."""

    def __init__(self) -> None:
        self.implicit = ClientProgram(None, None, is_implicit=True)
        self._open: dict[str, ClientProgram] = {}
        self._suspended: OrderedDict[str, ClientProgram] = OrderedDict()
        self._foreign: OrderedDict[str, None] = OrderedDict()
        """Ids of programs that another process ends."""
        self._lock = threading.Lock()

    def name_process(self, name: str | None, program_id: str | None) -> None:
        """Name the program of all calls outside of scopes; a framework's run then belongs to it."""
        implicit = self.implicit
        implicit.name = name or implicit.name
        if program_id is not None:
            implicit.program_id, implicit.has_chosen_id = program_id, True
            self.leave_to_others((program_id,))
        implicit.is_implicit = name is None and program_id is None

    def open(self, name: str | None, program_id: str | None, *, ends: bool = True) -> ClientProgram:
        """Return the program to enter: the open or suspended one with this id, else a new one."""
        with self._lock:
            key = program_id or ""
            program = self._live(key) or self._suspended.pop(key, None)
            if program is None:
                program = ClientProgram(name, program_id, is_remote=program_id in self._foreign)
            program.ends = ends
            return self._enter(program)

    def open_remote(self, program_id: str, name: str | None, *, is_implicit: bool) -> ClientProgram:
        """Return the program of another process to enter here."""
        with self._lock:
            program = self._live(program_id)
            if program is None:
                program = ClientProgram(name, program_id, is_implicit=is_implicit, is_remote=True)
            return self._enter(program)

    def _live(self, program_id: str) -> ClientProgram | None:
        program = self._open.get(program_id)
        return None if program is None or program.look_for_end() else program

    def chosen_ids(self) -> tuple[str, ...]:
        """List the ids that the user has chosen for open programs."""
        return tuple(program.program_id for program in list(self._open.values()) if program.has_chosen_id)

    def leave_to_others(self, ids: Iterable[str]) -> None:
        """Note programs that other processes have open, and end."""
        for program_id in ids:
            self._foreign[program_id] = None
        while len(self._foreign) > MAX_SUSPENDED:
            self._foreign.popitem(last=False)

    def _enter(self, program: ClientProgram) -> ClientProgram:
        self._open[program.program_id] = program
        program.open_scopes += 1
        return program

    def close(self, program: ClientProgram, progress: Progress | None = None) -> bool:
        """Leave a program, with the progress of a scope that is no branch; return whether this ended it."""
        with self._lock:
            if progress is not None:
                program.leave_turn(progress)
            program.open_scopes -= 1
            if program.open_scopes > 0:
                return False
            if self._open.get(program.program_id) is program:
                del self._open[program.program_id]
            if program.ends:
                program.end()
                return not program.is_remote
            self._suspended[program.program_id] = program.next_turn()
            while len(self._suspended) > MAX_SUSPENDED:
                self._suspended.popitem(last=False)
            return False

    def end_suspended(self, program_id: str) -> ClientProgram | None:
        with self._lock:
            return self._suspended.pop(program_id, None)

    def after_fork_in_child(self) -> None:
        """Make the open programs the child's own; replace the lock, which another thread may have held."""
        self._lock = threading.Lock()
        self._suspended.clear()
        for program in (self.implicit, *self._open.values()):
            program.after_fork_in_child()
        self._open = {program.program_id: program for program in self._open.values()}


programs = ProgramRegistry()
