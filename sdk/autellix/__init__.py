"""The Autellix client: importing it instruments this process, and does nothing else."""

from __future__ import annotations

from autellix._instrument.switch import configure, instrument, start, uninstrument
from autellix._scopes.api import current, program, propagate, session, thread
from autellix._scopes.scopes import end_program

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
