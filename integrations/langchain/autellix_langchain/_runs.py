"""Owns the runs that are open: the program of each root run, and since when each tool runs.

A root run is a chain or graph that starts where no program has been named. Which calls it makes, and how they
depend on each other, the client knows from threads and tasks; run ids only pair a start with its end.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from autellix.integration import SessionScope, current_strand, root_scope

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import FrameType

    from autellix.integration import ProgramScope, Strand

MAX_OPEN = 4096
"""How many runs, and how many tools, may be open; a run that never reports its end must not stay for ever."""
MAX_ID_CHARACTERS = 256
PLUMBING = ("autellix.", "autellix_langchain.", "langchain_core.callbacks")
"""Modules between the code that starts a run and its handlers."""


class Opened:
    """The scopes of one run, outermost first."""

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes: list[tuple[ProgramScope | SessionScope, Strand]] = []

    def enter(self, scope: ProgramScope | SessionScope, frame: FrameType | None) -> None:
        """Put a scope in force for the code that runs at a frame."""
        self._scopes.append((scope, scope.enter_at(frame)))

    def close(self) -> None:
        """Leave the scopes, from whichever thread or task."""
        while self._scopes:
            scope, strand = self._scopes.pop()
            scope.leave(strand)


def open_run(name: str | None, thread_id: object, frame: FrameType | None) -> Opened | None:
    """Open the program of a run that starts at a frame; None if it belongs to a program that has been named.

    Args:
        name: the run's name, which names the program too.
        thread_id: LangGraph's; its turns are one program, in a session of their own. None if there is none.
        frame: where the run's code runs.
    """
    conversation = None if thread_id is None else conversation_id(name, str(thread_id))
    program = root_scope(name, conversation, ends=conversation is None)
    if program is None:
        return None
    opened = Opened()
    if conversation is not None and current_strand().session is None:
        opened.enter(SessionScope(conversation, ends=False), frame)
    opened.enter(program, frame)
    return opened


def conversation_id(name: str | None, thread_id: str) -> str:
    """Return the id of a `thread_id`'s program and session, the same in every process of one application."""
    text = f"{name or 'run'}-{thread_id}"
    if len(text) > MAX_ID_CHARACTERS - 9 or not (text.isascii() and text.isprintable()):
        text = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text}-{_application()}"


@functools.cache
def _application() -> str:
    """Tell applications apart, whose graphs and threads often have the same names ("LangGraph", "1")."""
    script = sys.argv[0] if getattr(sys, "argv", None) else ""
    return hashlib.sha256(os.fsencode(Path(script).absolute())).hexdigest()[:8]


def starting_frame() -> FrameType | None:
    """Return the frame of the code that starts a run, below the machinery of callbacks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(PLUMBING):
        frame = frame.f_back
    return frame


class Runs:
    """The open root runs and tools of this process, by run id."""

    def __init__(self) -> None:
        self._roots: OrderedDict[Hashable, Opened] = OrderedDict()
        self._tools: OrderedDict[Hashable, tuple[str, float, Strand]] = OrderedDict()

    def start(self, run_id: Hashable, name: str | None, thread_id: object) -> None:
        """Open the program of a run, if it is a root; hearing of the same run again is no change."""
        if run_id in self._roots:
            return
        opened = open_run(name, thread_id, starting_frame())
        if opened is None:
            return
        self._roots[run_id] = opened
        while len(self._roots) > MAX_OPEN:
            self._roots.popitem(last=False)[1].close()

    def end(self, run_id: Hashable) -> None:
        """Close a run's program; for any other run this does nothing."""
        opened = self._roots.pop(run_id, None)
        if opened is not None:
            opened.close()

    def start_tool(self, run_id: Hashable, name: str) -> None:
        """Note when and in which line of control a tool starts."""
        self._tools.setdefault(run_id, (name, time.perf_counter(), current_strand()))
        while len(self._tools) > MAX_OPEN:
            self._tools.popitem(last=False)

    def end_tool(self, run_id: Hashable) -> None:
        """Record the tool as an interception, where it started: its end may be told in a task of its own."""
        started = self._tools.pop(run_id, None)
        if started is not None:
            name, started_s, strand = started
            strand.intercept(name, time.perf_counter() - started_s)

    def __len__(self) -> int:
        return len(self._roots) + len(self._tools)


runs = Runs()
"""One for all handlers: an explicit handler and the automatic one hear of the same runs."""
