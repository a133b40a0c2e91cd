"""`autellix status`: one line about a gateway's programs, and which one waits longest."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autellix_backend.cli.program_name import shown_name
from autellix_backend.cli.remote import RemoteGateway, add_remote_options, print_json
from autellix_backend.observe.durations import seconds
from autellix_backend.observe.states import WAITING, WORDS, ProgramState

MAX_PROGRAMS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the gateway."""
    add_remote_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the line."""
    programs = RemoteGateway.from_args(args).programs(MAX_PROGRAMS)["programs"]
    if args.json:
        print_json(
            {
                "programs": len(programs),
                "states": _counts(programs),
                "longest_wait": longest_waiting(programs),
            }
        )
    else:
        print(headline(programs))
    return 0


def headline(programs: Sequence[Mapping[str, Any]]) -> str:
    """Return how many programs are in which state, and the one that has been in a waiting state longest."""
    if not programs:
        return "No programs."
    counts = _counts(programs)
    states = ", ".join(f"{counts[state]} {WORDS[state]}" for state in ProgramState if state in counts)
    text = f"{len(programs)} program{'s' * (len(programs) > 1)}: {states}."
    longest = longest_waiting(programs)
    if longest is None:
        return f"{text} No program waits."
    name = shown_name(longest)
    shown = f"{longest['program_id']} ({name})" if name else longest["program_id"]
    return f"{text} Waiting longest: {shown}, for {seconds(longest['state_s'])}; `autellix why` tells why."


def _counts(programs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return dict(Counter(str(row["state"]) for row in programs))


def longest_waiting(programs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the row of the program that has been in a waiting state for longest; None if none waits."""
    waiting = [row for row in programs if row["state"] in WAITING]
    return max(waiting, key=lambda row: row["state_s"], default=None)
