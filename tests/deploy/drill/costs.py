"""The processor time of all processes in the drill's own namespaces, by what they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

PARTS = {
    "VLLM::EngineCore": "engine cores",
    "VLLM::Worker": "workers",
    "api_server": "engines' servers",
    "autellix": "gateways",
    "redis-server": "Redis",
}
"""What a command line has, and what it is; the first one counts."""
OTHER = "the drill"


def processor_seconds(folder: Path = Path("/proc")) -> dict[str, float]:
    """Return the processor time that living processes and their ended children have had, by part (s)."""
    found: dict[str, float] = {}
    for process in folder.glob("[0-9]*"):
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text(errors="replace")
            spent_s = _seconds((process / "stat").read_text(errors="replace"))
            found[_part(words)] = found.get(_part(words), 0.0) + spent_s
    return found


def _part(words: str) -> str:
    # The drill's own name leads through a folder that may be called as anything.
    if "tests.deploy.drill" in words:
        return OTHER
    return next((part for sign, part in PARTS.items() if sign in words), OTHER)


def _seconds(stat: str) -> float:
    """Return user and system time, its own and that of the children that it has waited for."""
    # The name in brackets may have spaces.
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def described(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Return the parts that have had time between two looks, the greatest first."""
    spent = {part: seconds - before.get(part, 0.0) for part, seconds in after.items()}
    shown = sorted(spent.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {spent_s:.1f} s" for name, spent_s in shown if spent_s >= 0.1)
