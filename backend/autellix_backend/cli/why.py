"""`autellix why [PROGRAM]`: explain why a program's calls wait or run, or what a settled call found."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from autellix_backend.cli.program_name import shown_name
from autellix_backend.cli.remote import RemoteError, RemoteGateway, add_remote_options, print_json
from autellix_backend.cli.status import MAX_PROGRAMS, longest_waiting
from autellix_backend.cli.terminal import printable
from autellix_backend.observe.durations import seconds

WIDTH = 100
MAX_ENDED = 1000
"""Ended programs; a gateway keeps no more."""
MAX_CANDIDATES = 8
NOT_FOUND = 404

Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the program and the gateway."""
    program = parser.add_mutually_exclusive_group()
    program.add_argument(
        "program",
        metavar="PROGRAM",
        nargs="?",
        help="id of the program, the beginning of its id, its name, or the id of one of its settled calls "
        "(default: the program that waits longest)",
    )
    program.add_argument("--last", action="store_true", help="the program that began last")
    add_remote_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    gateway = RemoteGateway.from_args(args)
    if args.program is not None:
        answer = _find(gateway, args.program)
    else:
        answer = _why(gateway, _last(_programs(gateway)) if args.last else _longest_waiting(gateway))
    if args.json:
        print_json(answer)
    else:
        print(explanation(answer))
    return 0


def _why(gateway: RemoteGateway, program_id: str) -> dict[str, Any]:
    return gateway.get(f"/programs/{quote(program_id, safe='/')}/why")


def _find(gateway: RemoteGateway, wanted: str) -> dict[str, Any]:
    """Return the explanation of the program with an id, else of the only one with this beginning or name."""
    try:
        return _why(gateway, wanted)
    except RemoteError as error:
        if error.status != NOT_FOUND:
            raise
    programs = _programs(gateway)
    found = [row for row in programs if row["program_id"].startswith(wanted) or row["name"] == wanted]
    if len(found) == 1:
        return _why(gateway, found[0]["program_id"])
    if not found and (call := _settled_call(gateway, wanted)) is not None:
        return call
    if found:
        problem = (
            f"{len(found)} programs have the name {wanted!r} or an id that begins so; expected the id of one"
        )
    else:
        problem = (
            f"there is no program {wanted!r}; expected the id, the beginning of an id, or the name of one"
        )
    raise RemoteError("\n  ".join([f"{problem}:", *_candidates(found or programs)]), NOT_FOUND)


def _settled_call(gateway: RemoteGateway, call_id: str) -> dict[str, Any] | None:
    """Return what a settled call found in the prefix cache; None if there is no such call."""
    try:
        return gateway.get(f"/calls/{quote(call_id, safe='/')}/why")
    except RemoteError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _programs(gateway: RemoteGateway) -> list[Row]:
    """Return open and ended programs, the last to begin first."""
    living, now_s = gateway.programs(MAX_PROGRAMS)["programs"], time.time()
    rows = [(now_s - row["age_s"], row) for row in living]
    rows += [(row["began_at_s"], row) for row in gateway.get(f"/history?limit={MAX_ENDED}")["programs"]]
    return [row for _, row in sorted(rows, key=lambda each: each[0], reverse=True)]


def _last(programs: Sequence[Row]) -> str:
    if not programs:
        raise RemoteError("the gateway has no programs yet", NOT_FOUND)
    return str(programs[0]["program_id"])


def _longest_waiting(gateway: RemoteGateway) -> str:
    """Return the id of the program that has been in a waiting state for the longest time."""
    found = longest_waiting(gateway.programs(MAX_PROGRAMS)["programs"])
    if found is None:
        raise RemoteError(
            "no program waits; expected PROGRAM, or --last for the one that began last", NOT_FOUND
        )
    return str(found["program_id"])


def _candidates(programs: Sequence[Row]) -> list[str]:
    """Return lines with the first of some programs."""
    lines = [
        printable(f"{row['program_id']}  {shown_name(row) or '-'}  {row['state_text']}")
        for row in programs[:MAX_CANDIDATES]
    ]
    more = len(programs) - len(lines)
    return [*lines, f"... and {more} more (autellix ps --all)"] if more else lines


def explanation(why: dict[str, Any]) -> str:
    """Return a gateway's explanation as text for a terminal."""
    if "calls" not in why:
        # A settled call.
        head = f"Call {why['call_id']} of program {why['program_id']} has ended at engine {why['engine']}."
        return _joined([head, *_wrapped(why["text"], "  ")])
    name = shown_name(why)
    name = f" ({name})" if name else ""
    state = "has ended" if why["state"] == "ended" else f"is {why['state_text']}"
    lines = [f"Program {why['program_id']}{name} {state}.", *_wrapped(why["text"], "  ")]
    for call in why["calls"]:
        lines += ["", f"Call {call['call_id']} of thread {_thread(call)} is {call['state_text']}."]
        lines += _wrapped(call["text"], "  ")
    if why["snapshot_age_s"] is not None:
        lines += ["", f"Based on an engine snapshot {seconds(why['snapshot_age_s'])} old."]
    return _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(map(printable, lines))


def _thread(call: dict[str, Any]) -> str:
    return f"{call['thread_id']} ({call['thread_name']})" if call["thread_name"] else str(call["thread_id"])


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
