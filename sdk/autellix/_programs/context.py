"""Defines what travels with work to another process, and back; both are pickled."""

from __future__ import annotations


class RemoteContext:
    """The propagation context of work in another process; unpickling it imports the client there."""

    __slots__ = ("foreign_ids", "frontier", "is_implicit", "name", "program_id", "session_id")

    def __init__(
        self,
        program_id: str,
        name: str | None,
        session_id: str | None,
        frontier: tuple[str, ...] | None,
        *,
        is_implicit: bool,
        foreign_ids: tuple[str, ...] = (),
    ) -> None:
        self.program_id = program_id
        self.name = name
        self.session_id = session_id
        self.frontier = frontier
        self.is_implicit = is_implicit
        self.foreign_ids = foreign_ids
        """Programs that the sender has open by an id: a process that opens one of them does not end it."""


class Progress:
    """The frontier that a thread has reached, and the frontier that it inherited."""

    __slots__ = ("frontier", "inherited")

    def __init__(self, frontier: tuple[str, ...] | None, inherited: tuple[str, ...] | None) -> None:
        self.frontier = frontier
        self.inherited = inherited
