"""Identifies what remembers a conversation: turns of one thread are one program only if they share it.

A saver that persists is identified by its database, which other processes may share. Any other memory is an
object of this process, and gets a number when it is first seen: a later object may get its address.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import weakref
from typing import TYPE_CHECKING

from autellix.integration import ids, safely

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

CHECKPOINTER = "__pregel_checkpointer"
"""LangGraph's key of a saver in a run's configuration, which goes before that of the graph."""
PARTS = ("host", "port", "dbname", "options")
"""What tells the databases of Postgres apart; the options may name a schema."""

_numbers = itertools.count(1)
_numbered: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def memory_of(graph: Any, frame: FrameType | None) -> str:
    """Return the memory of a graph's run that starts at a frame; that of the process if it is no graph's.

    A graph without a saver is its own memory: what else its turns share, nobody can see.
    """
    if graph is None or frame is None:
        return ids.prefix
    config = frame.f_locals.get("config")
    configurable = config.get("configurable") if isinstance(config, dict) else None
    saver = (configurable or {}).get(CHECKPOINTER) or graph.checkpointer
    # True or False say whether a subgraph uses the saver of the graph around it.
    holder = graph if saver is None or isinstance(saver, bool) else saver
    return safely(_database_of, holder) or f"{ids.prefix}-{number_of(holder)}"


def number_of(holder: Any) -> int:
    """Return the number of an object of this process, which no other one ever has."""
    try:
        return _numbered.get(holder) or _numbered.setdefault(holder, next(_numbers))
    except TypeError:
        # Not hashable, or without weak references: each of its runs is a program of its own.
        return next(_numbers)


def copy_number(copy: Any, original: Any) -> None:
    """Let the copy of a graph be the same memory."""
    _numbered[copy] = number_of(original)


def _database_of(saver: Any) -> str | None:
    """Return the database of a saver for SQLite or Postgres; None for another saver, or one in memory."""
    connection: Any = getattr(saver, "conn", None)
    kind = type(connection).__module__.partition(".")[0]
    if kind == "sqlite3":
        cursor = connection.cursor()
        # The user's may make anything of a row.
        cursor.row_factory = None
        file = cursor.execute("PRAGMA database_list").fetchone()[2]
        # Containers of one layout have the same paths.
        entry = os.stat(file) if file else None  # noqa: PTH116 - as a path, "" would be the working folder
        return entry and f"{socket.gethostname()} {file} {entry.st_dev} {entry.st_ino}"
    if kind == "psycopg":
        info = connection.info
        return _server_database(info.host, info.port, info.dbname, info.options)
    if kind == "psycopg_pool":
        given = {name: value for name, value in (connection.kwargs or {}).items() if name in PARTS}
        parts = sys.modules["psycopg.conninfo"].conninfo_to_dict(connection.conninfo, **given)
        return _server_database(*map(parts.get, PARTS))
    return None


def _server_database(host: Any, port: Any, name: Any, options: Any) -> str | None:
    """Return a database of a server; None where its place is in the environment or a file."""
    if not host or not name:
        return None
    # Other machines have servers of these names too; one that begins like a path is a socket.
    is_local = host.startswith(("/", "@", "localhost", "127.", "::1"))
    return f"{socket.gethostname() if is_local else ''} {host} {port} {name} {options}"
