"""Where graphs were compiled: graphs without a name are named after it, and applications differ by it.

A run does not show it, because any module, task or pool may start it. Nor do the arguments and the working
folder of the process, which may differ between two turns of one conversation.
"""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autellix_langchain._memories import copy_number

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

UNNAMED = "LangGraph"
"""LangGraph's name of a graph that the user has not named."""
FRAMEWORKS = frozenset(
    (
        "autellix",
        "autellix_langchain",
        "deepagents",
        "langchain",
        "langchain_core",
        "langgraph",
        "langgraph_api",
        "langgraph_supervisor",
        "langgraph_swarm",
        "typing",
    )
)
"""Packages between the user's code and a graph that it makes; `typing` calls generic classes."""
SCRIPTS = ("__main__", "__mp_main__")
"""The script in its own process, and in one that `multiprocessing` has started."""
APPLICATION_VARIABLE = "AUTELLIX_APPLICATION"
"""Distinguishes applications of the same files, such as in containers of one layout."""


class GraphOrigin(NamedTuple):
    """The module that has compiled a graph."""

    module: str
    file: str | None
    """None in a console or notebook."""

    @property
    def name(self) -> str:
        """The name of its graphs that have none."""
        if self.module not in SCRIPTS:
            return self.module
        return UNNAMED if self.file is None else Path(self.file).name


_origins: weakref.WeakKeyDictionary[Any, GraphOrigin] = weakref.WeakKeyDictionary()


def note_origin(graph: Any) -> None:
    """Note which module of the user's is making a graph; a copy has the origin of what it copies."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) in FRAMEWORKS:
        if frame.f_code.co_name == "copy" and (original := graph_at(frame)) is not None:
            copy_number(graph, original)
            if (copied := origin_of(original)) is not None:
                _origins[graph] = copied
            return
        frame = frame.f_back
    if frame is not None:
        _origins[graph] = GraphOrigin(_module(frame), _file(frame.f_globals.get("__file__")))


def graph_at(frame: FrameType | None) -> Any:
    """Return the graph whose method runs at a frame; None if it is none."""
    if frame is None or _package(frame) != "langgraph":
        return None
    found = frame.f_locals.get("self")
    return found if hasattr(found, "checkpointer") else None


def origin_of(graph: Any) -> GraphOrigin | None:
    """Return the origin of a graph; None if it is from before."""
    try:
        return _origins.get(graph)
    except TypeError:
        # Not hashable, or without weak references: None, for example.
        return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _file(file: object) -> str | None:
    return file if isinstance(file, str) else None


def application_of(origin: GraphOrigin | None) -> str:
    """Distinguish applications, whose graphs and threads often have the same names ("chat", "1").

    The text is the same in all processes of an application.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    file = _file(script) if origin is None else origin.file
    # A script's may hold `..`; its symbolic links stay, because they are how releases change.
    return f"{os.path.normpath(file) if file else ''}\0{os.environ.get(APPLICATION_VARIABLE, '')}"
