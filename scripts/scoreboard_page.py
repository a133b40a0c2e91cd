#!/usr/bin/env python3
"""Write the table of docs/results/README.md from docs/results/scoreboard.toml.

.venv/bin/python scripts/scoreboard_page.py
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
PAGE = RESULTS / "README.md"
HEAD = """# Results

<!-- Written by scripts/scoreboard_page.py. -->

Each claim with its figure, where it loses, and the command that measures it again; the links lead to the
tables. Ratios are to FCFS, vLLM's own order, with the same programs and arrivals: less is better. Nothing
was measured on a GPU; figures with a GPU's name are simulated. `DATA` is a folder whose `public/` has the
recorded traces. To decide, read [Does it help me?](../help.md) first.

`scripts/scoreboard` measures a small version of each row again, in at most 20 minutes on two idle cores, and
prints what has moved by more than its noise. The last column has the commit that was measured, or else the
one that brought the figure. The measuring tools are ours unless a row names others.

| claim | figure | where it loses | command | measured |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallVersion:
    """A small measurement of a claim; the fields are those that scoreboard.toml explains."""

    run: Sequence[str]
    expected: float
    noise: float
    keys: Sequence[Sequence[str | int]] = ()
    pattern: str = ""
    needs: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A row of the table."""

    slug: str
    claim: str
    figure: str
    loses: str
    page: str
    """Where the figure is, with its anchor, from docs/results."""
    command: str
    tool: str
    """Whose measuring tool it was."""
    date: str
    commit: str
    small: SmallVersion | None = None


def read_claims() -> list[Claim]:
    """Return all claims, in the order of the table."""
    found = tomllib.loads((RESULTS / "scoreboard.toml").read_text(encoding="utf-8"))["claim"]
    return [
        Claim(**{**each, "small": SmallVersion(**each["small"]) if "small" in each else None})
        for each in found
    ]


def page() -> str:
    """Return the page."""
    return HEAD + "".join(_row(claim) for claim in read_claims())


def _row(claim: Claim) -> str:
    link = f"[`{_short(claim.command)}`]({claim.page})"
    command = link if claim.tool == "ours" else f"{link} ({claim.tool})"
    cells = (claim.claim, claim.figure, claim.loses, command, f"{claim.date}, {claim.commit}")
    return f"| {' | '.join(cells)} |\n"


def _short(command: str) -> str:
    """Return the program of a command, without its options."""
    words = shlex.split(command)
    program = next((word for word in words if "/" in word), None)
    return program.rpartition("/")[2] if program else " ".join(words[:3])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
