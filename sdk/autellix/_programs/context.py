"""Defines what travels with work to another process, and back."""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class RemoteContext(NamedTuple):
        """The propagation context of work in another process; unpickling it imports the client there."""

        program_id: str
        name: str | None
        is_implicit: bool
        session_id: str | None
        frontier: tuple[str, ...] | None

    class Progress(NamedTuple):
        """The frontier that a thread has reached, and the frontier that it inherited."""

        frontier: tuple[str, ...] | None
        inherited: tuple[str, ...] | None

else:
    # Importing typing would cost more than the rest of the import.
    RemoteContext = namedtuple("RemoteContext", "program_id name is_implicit session_id frontier")
    Progress = namedtuple("Progress", "frontier inherited")
