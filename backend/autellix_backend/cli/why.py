"""`autellix why PROGRAM`: explain why each of a program's calls waits or runs."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any
from urllib.parse import quote

from autellix_backend.cli.program_name import shown_name
from autellix_backend.cli.remote import RemoteGateway, add_remote_options, print_json
from autellix_backend.observe.durations import seconds

WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the program and the gateway."""
    parser.add_argument("program", metavar="PROGRAM", help="id of the program, as `autellix ps` shows it")
    add_remote_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    answer = RemoteGateway.from_args(args).get(f"/programs/{quote(args.program, safe='/')}/why")
    if args.json:
        print_json(answer)
    else:
        print(explanation(answer))
    return 0


def explanation(why: dict[str, Any]) -> str:
    """Return a gateway's explanation as text for a terminal."""
    name = shown_name(why)
    name = f" ({name})" if name else ""
    state = "has ended" if why["state"] == "ended" else f"is {why['state_text']}"
    lines = [f"Program {why['program_id']}{name} {state}.", *_wrapped(why["text"], "  ")]
    for call in why["calls"]:
        lines += ["", f"Call {call['call_id']} of thread {_thread(call)} is {call['state_text']}."]
        lines += _wrapped(call["text"], "  ")
    if why["snapshot_age_s"] is not None:
        lines += ["", f"Based on an engine snapshot {seconds(why['snapshot_age_s'])} old."]
    return "\n".join(lines)


def _thread(call: dict[str, Any]) -> str:
    return f"{call['thread_id']} ({call['thread_name']})" if call["thread_name"] else str(call["thread_id"])


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
