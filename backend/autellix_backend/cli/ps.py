"""`autellix ps`: the programs of a gateway."""

from __future__ import annotations

import argparse

from autellix_backend.cli.arguments import count
from autellix_backend.cli.program_table import make_console, program_table
from autellix_backend.cli.remote import RemoteGateway, add_remote_options, print_json

STATES = ("running", "waiting", "idle", "ending")
DEFAULT_LIMIT = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the gateway, and which programs to show."""
    add_remote_options(parser)
    parser.add_argument("--state", choices=STATES, help="only programs in this state")
    parser.add_argument(
        "--limit", type=count, default=DEFAULT_LIMIT, metavar="N", help="how many (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    answer = RemoteGateway.from_args(args).programs(args.limit, args.state)
    if args.json:
        print_json(answer)
    elif answer["programs"]:
        make_console().print(program_table(answer["programs"], has_more=answer["has_more"]))
    else:
        print("No programs.")
    return 0
