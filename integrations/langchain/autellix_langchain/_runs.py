"""Keeps the open runs: the program of each root run, and the start of each tool.

A root run is a chain or graph that starts where no program has been named. The client sees from threads and
tasks which calls it makes and how they depend on each other; run ids only pair a start with its end.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from autellix.integration import ProgramScope, running_thread
from autellix_langchain._memories import memory_of
from autellix_langchain._origins import UNNAMED, application_of, graph_at, origin_of

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import FrameType

    from autellix.integration import ProgramThread

MAX_OPEN = 4096
"""How many runs, and how many tools, may be open; a run that never reports its end must not stay for ever."""
MAX_ID_CHARACTERS = 256
DIGEST_CHARACTERS = 16
"""Enough that no two of the memories that one process makes are taken for each other."""
CALLBACK_MODULES = ("autellix.", "autellix_langchain.", "langchain_core.callbacks")
"""Modules between the code that starts a run and its handlers."""


class OpenRun:
    """The program of one run."""

    __slots__ = ("_scope", "_thread")

    def __init__(self, scope: ProgramScope, frame: FrameType | None) -> None:
        """Enter the scope for the code that runs at a frame."""
        self._scope = scope
        self._thread = scope.enter_at(frame)

    def close(self) -> None:
        """Leave the scope, from any thread or task."""
        self._scope.leave(self._thread)


def open_run(name: str | None, thread_id: object, frame: FrameType | None) -> OpenRun | None:
    """Open the program of a run; return None inside a program that has been named.

    Args:
        name: the run's name, which becomes the program's.
        thread_id: LangGraph's, if any; its turns in one memory are one program.
        frame: where the run's code runs: in a method of the graph, if it is one.
    """
    if not running_thread().program.is_implicit:
        return None
    graph = graph_at(frame)
    origin = origin_of(graph)
    if name == UNNAMED and origin is not None:
        name = origin.name
    if thread_id is None:
        return OpenRun(ProgramScope(name), frame)
    conversation = conversation_id(name, str(thread_id), application_of(origin), memory_of(graph, frame))
    return OpenRun(ProgramScope(name, conversation, ends=False), frame)


def conversation_id(name: str | None, thread_id: str, application: str, memory: str) -> str:
    """Return the program id of a `thread_id`, equal wherever an application shares a memory."""
    text = f"{name or 'run'}-{thread_id}"
    if len(text) > MAX_ID_CHARACTERS - DIGEST_CHARACTERS - 1 or not (text.isascii() and text.isprintable()):
        text = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    digest = hashlib.sha256(f"{application}\0{memory}".encode(errors="surrogatepass")).hexdigest()
    return f"{text}-{digest[:DIGEST_CHARACTERS]}"


def name_branch(node: str) -> None:
    """Name the running thread after a graph's node, if it is the job of a step with several nodes.

    A step with one node runs on the thread of the graph itself, which goes on to other nodes.
    """
    thread = running_thread()
    if thread.is_fanned_out and thread.frontier == thread.inherited:
        thread.name = thread.name or node


def _starting_frame() -> FrameType | None:
    """Return the frame of the code that starts a run, outside the callback machinery."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(CALLBACK_MODULES):
        frame = frame.f_back
    return frame


class OpenRuns:
    """The open root runs and tools of this process, by run id."""

    def __init__(self) -> None:
        self._roots: OrderedDict[Hashable, OpenRun] = OrderedDict()
        self._tools: OrderedDict[Hashable, tuple[str, float, ProgramThread]] = OrderedDict()

    def start(self, run_id: Hashable, name: str | None, thread_id: object) -> None:
        """Open the program of a run, if it is a root run; ignore a repeated start."""
        if run_id in self._roots:
            return
        opened = open_run(name, thread_id, _starting_frame())
        if opened is None:
            return
        self._roots[run_id] = opened
        while len(self._roots) > MAX_OPEN:
            self._roots.popitem(last=False)[1].close()

    def end(self, run_id: Hashable) -> None:
        """Close the program of a root run."""
        opened = self._roots.pop(run_id, None)
        if opened is not None:
            opened.close()

    def start_tool(self, run_id: Hashable, name: str) -> None:
        """Record when and in which program thread a tool starts."""
        self._tools.setdefault(run_id, (name, time.perf_counter(), running_thread()))
        while len(self._tools) > MAX_OPEN:
            self._tools.popitem(last=False)

    def end_tool(self, run_id: Hashable) -> None:
        """Record the tool where it started; LangChain may report its end in another task."""
        started = self._tools.pop(run_id, None)
        if started is not None:
            name, started_s, thread = started
            thread.record_tool(name, time.perf_counter() - started_s)

    def __len__(self) -> int:
        return len(self._roots) + len(self._tools)


open_runs = OpenRuns()
"""Shared by all handlers: an explicit handler and the automatic one receive the same runs."""
