"""`autellix ps`: the programs of a gateway, and those that have ended."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlencode

from autellix_backend.cli.arguments import count
from autellix_backend.cli.program_table import add_wide_option, program_table
from autellix_backend.cli.remote import RemoteGateway, add_remote_options, print_json
from autellix_backend.cli.terminal import Terminal
from autellix_backend.observe.states import ProgramState

STATES = tuple(state.value for state in ProgramState if state is not ProgramState.ENDED)
DEFAULT_LIMIT = 50
MAX_ENDED = 1000
"""The gateway's limit for one answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the gateway, and which programs to show."""
    add_remote_options(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--state", choices=STATES, help="only programs in this state")
    shown.add_argument("--all", action="store_true", help="include ended programs, the last to end first")
    add_wide_option(parser)
    parser.add_argument(
        "--limit",
        type=count,
        default=DEFAULT_LIMIT,
        metavar="N",
        help="programs to list (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    gateway = RemoteGateway.from_args(args)
    answer = gateway.programs(args.limit, args.state)
    if args.all and len(answer["programs"]) < args.limit:
        answer = _with_ended(answer, gateway, args.limit)
    if args.json:
        print_json(answer)
    elif answer["programs"]:
        programs, has_more = answer["programs"], answer["has_more"]
        print(*program_table(Terminal.of_output(), programs, has_more=has_more, is_wide=args.wide), sep="\n")
    else:
        print("No programs.")
    return 0


def _with_ended(answer: dict[str, Any], gateway: RemoteGateway, limit: int) -> dict[str, Any]:
    """Add ended programs up to the limit."""
    room = min(limit - len(answer["programs"]), MAX_ENDED)
    ended = gateway.get(f"/history?{urlencode({'limit': room})}")
    return {"programs": answer["programs"] + ended["programs"], "has_more": ended["has_more"]}
