"""What Linux says of other processes, each of which may end at any moment."""

from __future__ import annotations

from pathlib import Path


def stat_of(pid: int) -> list[str] | None:
    """Return a process's state, parent, group, session and so on, None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def command_of(pid: int) -> str:
    """Return a process's command line, "" if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Return whether there is a process that has not ended."""
    stat = stat_of(pid)
    return stat is not None and stat[0] != "Z"
