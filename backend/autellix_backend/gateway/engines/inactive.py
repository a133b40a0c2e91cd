"""Why a program is not active: the contexts of others fill the KV memory that admission may use."""

from __future__ import annotations

from dataclasses import dataclass

from autellix_backend.reports.snapshot import AdmissionSnapshot

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


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
        working_set = self.working_set
        used, capacity = working_set.working_set_tokens, working_set.capacity_tokens
        fits = used + self.context_tokens <= capacity
        why = "waits behind earlier programs" if fits else "does not fit"
        programs = f"{working_set.active_programs} active program{'s' * (working_set.active_programs != 1)}"
        return (
            f"inactive: its {self.context_tokens:,}-token context {why} beside {programs} "
            f"({used:,} of {capacity:,} tokens); {_ordinal(self.place)} in order"
        )


def _ordinal(place: int) -> str:
    if place <= len(_ORDINALS):
        return _ORDINALS[place - 1]
    suffix = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{suffix}"
