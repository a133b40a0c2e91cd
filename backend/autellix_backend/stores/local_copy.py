"""One gateway's copy of the shared process table."""

from __future__ import annotations

from autellix_backend.stores.base import Inherited, ProgramView, StoredCall
from autellix_backend.stores.memory import MemoryStore


class LocalCopy(MemoryStore):
    """A MemoryStore that merges the shared table's values and can be read without awaiting."""

    def adopt(self, program_id: str, inherited: Inherited, now: float) -> None:
        """Merge what a call inherits from the shared table into its program in the copy."""
        self._table.merge(program_id, inherited.program_service_s, inherited.wait_s, inherited.work)
        view = self._entries[program_id].view
        view.first_arrival_s = min(view.first_arrival_s, now - inherited.age_s)

    def forget(self, program_id: str) -> None:
        """Drop a program, at once or with its last running call; it may be unknown."""
        self._end(program_id)

    def views(self) -> list[ProgramView]:
        """Return the programs with their calls, in order of arrival."""
        return [view for program_id in self._entries if (view := self.view(program_id)) is not None]

    def sums(self, program_id: str) -> dict[str, float] | None:
        """Return a program's service and waiting, None if it is not in the copy."""
        program = self._table.get(program_id)
        return None if program is None else {"service_s": program.service_s, "wait_s": program.wait_s}

    def running(self, program_id: str, key: str) -> StoredCall | None:
        """Return a running call, None if there is none of this key."""
        entry = self._entries.get(program_id)
        return None if entry is None else entry.running.get(key)

    def path_ends_s(self, program_id: str) -> dict[str, float]:
        """Return the ends of a program's paths, for policies that read parents; empty if it is unknown."""
        program = self._table.get(program_id)
        return {} if program is None else dict(program.path_ends_s)

    def kept_by(self, session_id: str) -> list[str]:
        """Return the programs that this session alone keeps."""
        programs = self._programs_of.get(session_id, {})
        return [name for name in programs if len(self._entries[name].view.session_ids) == 1]

    def sessions(self) -> dict[str, float]:
        """Return the sessions with their last heartbeats."""
        return self._heartbeats.moments()

    def adopt_session(self, session_id: str, now: float, owner: str | None) -> None:
        """Take over a session as the shared table has it."""
        self._heartbeats.set(session_id, now)
        if owner is not None:
            self._owners[session_id] = owner

    def owner(self, session_id: str) -> str | None:
        """Return the owner of a session that was started here, None if it has none."""
        return self._owners.get(session_id)
