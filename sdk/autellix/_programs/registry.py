"""Keeps the programs of this process that are open, or suspended between two turns."""

from __future__ import annotations

import threading
from collections import OrderedDict

from autellix._programs.program import ClientProgram

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autellix._programs.context import RemoteContext

MAX_SUSPENDED = 4096


class ProgramRegistry:
    """The programs by id, and the implicit program of the process."""

    def __init__(self) -> None:
        self.implicit = ClientProgram(None, None, is_implicit=True)
        self._open: dict[str, ClientProgram] = {}
        self._suspended: OrderedDict[str, ClientProgram] = OrderedDict()
        self._lock = threading.Lock()

    def name_process(self, name: str | None, program_id: str | None) -> None:
        """Name the program of all calls outside of scopes; a framework's run then belongs to it."""
        implicit = self.implicit
        implicit.name = name or implicit.name
        if program_id is not None:
            implicit.program_id, implicit.has_chosen_id = program_id, True
        implicit.is_implicit = name is None and program_id is None

    def open(self, name: str | None, program_id: str | None, *, ends: bool = True) -> ClientProgram:
        """Return the program to enter: the open or suspended one with this id, else a new one."""
        with self._lock:
            program = self._open.get(program_id) if program_id else None
            if program is None and program_id is not None:
                program = self._suspended.pop(program_id, None)
            if program is None:
                program = ClientProgram(name, program_id)
            program.ends = ends
            return self._enter(program)

    def open_remote(self, context: RemoteContext) -> ClientProgram:
        """Return the program of another process to enter here."""
        with self._lock:
            program = self._open.get(context.program_id)
            if program is None:
                program = ClientProgram(
                    context.name, context.program_id, is_implicit=context.is_implicit, is_remote=True
                )
            return self._enter(program)

    def _enter(self, program: ClientProgram) -> ClientProgram:
        self._open[program.program_id] = program
        program.open_scopes += 1
        return program

    def close(self, program: ClientProgram, frontier: tuple[str, ...] | None) -> bool:
        """Leave a program that has reached a frontier; return whether this ended it."""
        with self._lock:
            program.open_scopes -= 1
            if program.open_scopes > 0:
                return False
            self._open.pop(program.program_id, None)
            if program.ends:
                return not program.is_remote
            program.frontier = frontier
            self._suspended[program.program_id] = program
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
