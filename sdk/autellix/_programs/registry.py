"""Keeps the programs of this process that are open, or suspended between two turns, without a lock."""

from __future__ import annotations

from collections import OrderedDict

from autellix._faults import safely
from autellix._open_scopes import add_open, find_open, hold_for_tasks, remove
from autellix._programs.program import ClientProgram
from autellix._sessions.keeper import keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from autellix._programs.progress import Progress

MAX_SUSPENDED = 4096


class ProgramRegistry:
    """The programs by id, and the implicit program of the process."""

    def __init__(self) -> None:
        self.implicit = ClientProgram(None, None, is_implicit=True)
        self.implicit.scopes.tasks = None
        self._open: dict[str, ClientProgram] = {}
        self._suspended: OrderedDict[str, ClientProgram] = OrderedDict()
        self._foreign: OrderedDict[str, None] = OrderedDict()
        """Ids of programs that another process ends."""

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
        program = None if program_id is None else self._find(program_id)
        while program is None:
            # While another thread leaves or enters a turn with this id, it may miss the turn before.
            turn = self._suspended.pop(program_id, None) if program_id else None
            is_remote = program_id in self._foreign
            program = self._add(turn or ClientProgram(name, program_id, is_remote=is_remote))
        program.ends = ends
        return program

    def open_remote(self, program_id: str, name: str | None, *, is_implicit: bool) -> ClientProgram:
        """Return the program of another process to enter here."""
        program = self._find(program_id)
        while program is None:
            program = self._add(ClientProgram(name, program_id, is_implicit=is_implicit, is_remote=True))
        return program

    def _find(self, program_id: str) -> ClientProgram | None:
        program = self._open.get(program_id)
        if program is not None and program.look_for_end():
            remove(self._open, program_id, program)
        return find_open(self._open, program_id)

    def _add(self, program: ClientProgram) -> ClientProgram | None:
        return add_open(self._open, program.program_id, program)

    def chosen_ids(self) -> tuple[str, ...]:
        """List the ids that the user has chosen for open programs."""
        return tuple(program.program_id for program in list(self._open.values()) if program.has_chosen_id)

    def leave_to_others(self, ids: Iterable[str]) -> None:
        """Note programs that other processes have open, and end."""
        for program_id in ids:
            self._foreign[program_id] = None
        while len(self._foreign) > MAX_SUSPENDED:
            self._foreign.popitem(last=False)

    def close(self, program: ClientProgram, progress: Progress | None = None) -> None:
        """Leave a program, with the progress of a scope that is no branch; the last to leave it ends it."""
        if progress is not None:
            program.leave_turn(progress)
        hold_for_tasks(self, program)
        if not program.scopes.leave():
            return
        remove(self._open, program.program_id, program)
        if program.ends:
            program.end()
            if not program.is_remote:
                safely(_report_end, program)
            return
        self._suspended[program.program_id] = program.next_turn()
        while len(self._suspended) > MAX_SUSPENDED:
            self._suspended.popitem(last=False)

    def end_suspended(self, program_id: str) -> None:
        """End a program of several turns that has no open scope; do nothing if there is none."""
        program = self._suspended.pop(program_id, None)
        if program is not None:
            safely(_report_end, program)

    def after_fork_in_child(self) -> None:
        """Make the open programs the child's own."""
        self._suspended.clear()
        for program in (self.implicit, *self._open.values()):
            program.after_fork_in_child()
        self._open = {program.program_id: program for program in self._open.values()}


def _report_end(program: ClientProgram) -> None:
    for registration in list(program.registrations):
        keeper.end_program(registration, program.program_id)
    for ended in list(program.engines.values()):
        ended.append(program.program_id)


programs = ProgramRegistry()
