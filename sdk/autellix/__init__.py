"""The Autellix client: importing it instruments this process, which is the one effect an import has here."""

from __future__ import annotations

from autellix._instrument import configure, instrument, start, uninstrument
from autellix._programs import current, end_program, program, propagate, session, thread

__all__ = [
    "configure",
    "current",
    "end_program",
    "instrument",
    "program",
    "propagate",
    "session",
    "thread",
    "uninstrument",
]

start()
del start
