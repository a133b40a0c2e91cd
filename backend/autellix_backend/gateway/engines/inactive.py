"""Why a program is not active: the contexts of others fill the KV memory that admission may use."""

from __future__ import annotations

from dataclasses import dataclass

from autellix_backend.reports.snapshot import AdmissionSnapshot


@dataclass(frozen=True, slots=True)
class Inactive:
    """A program whose calls wait until it is active."""

    context_tokens: int
    place: int
    """Among those that wait, from 1."""
    working_set: AdmissionSnapshot

    @property
    def text(self) -> str:
        """The reason in words."""
        working_set, ahead = self.working_set, self.place - 1
        capacity = working_set.capacity_tokens
        free = max(0, capacity - working_set.working_set_tokens)
        programs = f"{ahead} programs are" if ahead > 1 else f"{'1' if ahead else 'No'} program is"
        but = ", but" if ahead and self.context_tokens <= free else "."
        needs = f"it needs {self.context_tokens:,} tokens, {free:,} of {capacity:,} are free"
        return f"{needs}{but} {programs} ahead of it"
