"""What integrations of frameworks build on; not for programs, and free to change between versions."""

from __future__ import annotations

from autellix._instrument import when_imported
from autellix._patching import Patches
from autellix._programs import ProgramScope, SessionScope, end_program, root_scope
from autellix._safely import safely
from autellix._scope import (
    Together,
    adopt,
    current_strand,
    fork,
    hang,
    spawning,
    strand_on,
    swap,
)
from autellix._strand import Strand, Trail, ids

__all__ = [
    "Patches",
    "ProgramScope",
    "SessionScope",
    "Strand",
    "Together",
    "Trail",
    "adopt",
    "current_strand",
    "end_program",
    "fork",
    "hang",
    "ids",
    "root_scope",
    "safely",
    "spawning",
    "strand_on",
    "swap",
    "when_imported",
]
