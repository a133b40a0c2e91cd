"""One gateway's copy of a table that it shares with others."""

from __future__ import annotations

from autellix_backend.stores.base import CallStart, ProgramView
from autellix_backend.stores.memory import MemoryStore, view_program


class LocalCopy(MemoryStore):
    """A MemoryStore that takes in what the shared table knows, and can be read without a pause."""

    def adopt(self, program_id: str, *, service_s: float, wait_s: float) -> None:
        """Take in the shared table's service and waiting of a program that is here."""
        self._table.merge(program_id, service_s, wait_s)

    def forget(self, program_id: str) -> None:
        """Drop a program, at once or with its last running call; it may be unknown."""
        self._end(program_id)

    def program_ids(self) -> list[str]:
        """Return the programs in order of arrival."""
        return list(self._entries)

    def view(self, program_id: str) -> ProgramView | None:
        """Return one program with its calls."""
        program = self._table.get(program_id)
        return None if program is None else view_program(program, self._entries[program_id])

    def standing(self, program_id: str) -> dict[str, float] | None:
        """Return a program's service and waiting, None if it is not here."""
        program = self._table.get(program_id)
        return None if program is None else {"service_s": program.service_s, "wait_s": program.wait_s}

    def running(self, program_id: str) -> list[tuple[CallStart, float]]:
        """Return a program's running calls, and when they started; none if it is not here."""
        entry = self._entries.get(program_id)
        return [] if entry is None else [(one.start, one.start_s) for one in entry.running.values()]

    def path_ends_s(self, program_id: str) -> dict[str, float]:
        """Return the ends of a program's paths, for policies that read parents; none if it is not here."""
        program = self._table.get(program_id)
        return {} if program is None else dict(program.path_ends_s)

    def kept_by(self, session_id: str) -> list[str]:
        """Return the programs that this session alone keeps."""
        programs = self._programs_of.get(session_id, {})
        return [name for name in programs if len(self._entries[name].session_ids) == 1]

    def sessions(self) -> dict[str, float]:
        """Return the sessions with their last heartbeats."""
        return dict(self._heartbeats)
