"""The class of each live program, and the spread of each tenant's sizes, which engines read with a call."""

from __future__ import annotations

from collections import defaultdict

from autellix_backend.core.statistics import SizeSpread
from autellix_backend.stores.base import CLASS_SEPARATOR, CallStart, ProgramEnd, tenant_of

LEAST_PROGRAMS = 8
"""Ended programs of a tenant before its spread is stated."""


def class_id(tenant: str, name: str) -> str:
    """Return the id of a tenant's class in the process table; no tenant's name holds a slash."""
    return f"{tenant}{CLASS_SEPARATOR}{name}"


class ProgramClasses:
    """Follows the live programs, and learns the spread of sizes from all ends, also at other gateways."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        """The class ids of live programs."""
        self._provisional: set[str] = set()
        """Live programs whose class a call with tools would decide."""
        self._sizes: defaultdict[str, SizeSpread] = defaultdict(SizeSpread)
        """Sizes by tenant: tenants do not inform each other."""

    def __len__(self) -> int:
        """Return the number of live programs."""
        return len(self._classes)

    def is_open(self, program_id: str, *, offers_tools: bool) -> bool:
        """Return whether a call decides the class of its program.

        That is the first call here, or the first one with tools: a side call for a title has none.
        """
        return program_id not in self._classes or (offers_tools and program_id in self._provisional)

    def of(self, program_id: str) -> str:
        """Return the id of a live program's class; empty if none is known."""
        return self._classes.get(program_id, "")

    def on_call_begun(self, start: CallStart, *, offers_tools: bool) -> str:
        """Follow a program, with the class that its call states if that decides it; return the class's id."""
        program_id = start.program_id
        if start.class_id is not None and self.is_open(program_id, offers_tools=offers_tools):
            self._classes[program_id] = start.class_id
            self._provisional.discard(program_id)
            if not (offers_tools or start.name):
                self._provisional.add(program_id)
        return self.of(program_id)

    def on_program_ended(self, end: ProgramEnd) -> None:
        """Add the size of an ended program to its tenant's; one without a class or work has no size."""
        self._provisional.discard(end.program_id)
        found = self._classes.pop(end.program_id, end.class_id)
        if found is not None:
            self._sizes[tenant_of(found)].add(end.work)

    def spread(self, tenant: str) -> float | None:
        """Return the standard deviation of ln(work) over a tenant's latest ended programs, None at first."""
        sizes = self._sizes.get(tenant)
        return sizes.value if sizes is not None and len(sizes) >= LEAST_PROGRAMS else None
