"""`autellix top`: engines and programs, live in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

from autellix_backend.cli.arguments import above_zero
from autellix_backend.cli.program_table import add_wide_option, engine_table, program_table
from autellix_backend.cli.remote import RemoteError, RemoteGateway, add_remote_options, print_json
from autellix_backend.cli.terminal import Style, Terminal, full_screen, redraw

DEFAULT_PERIOD_S = 1.0
MARGIN_LINES = 8
"""Lines of the screen without programs."""
PLAIN_LIMIT = 50
FORBIDDEN = 403


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the gateway and the refresh period."""
    add_remote_options(parser)
    parser.add_argument(
        "--period",
        type=above_zero,
        default=DEFAULT_PERIOD_S,
        metavar="S",
        help="seconds between refreshes (default: %(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="print once and exit; the default in a pipe")
    add_wide_option(parser)


def run(args: argparse.Namespace) -> int:
    """Show the gateway until Ctrl-C."""
    gateway, terminal = RemoteGateway.from_args(args), Terminal.of_output()
    if args.json:
        print_json(_fetch(gateway, PLAIN_LIMIT))
    elif args.once or not terminal.is_terminal:
        shown = _screen(terminal, gateway.url, _fetch(gateway, PLAIN_LIMIT), is_wide=args.wide)
        print(*shown, sep="\n")
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(gateway, args)
    return 0


def _screen(terminal: Terminal, url: str, state: dict[str, Any], *, is_wide: bool) -> list[str]:
    """Return the lines of the screen for one state of the gateway."""
    engines = state["engines"]
    heading = f"Autellix at {url}   {time.strftime('%H:%M:%S')}   Ctrl-C quits"
    return [
        *terminal.wrapped(heading, Style.BOLD),
        "",
        *(
            ["engines are shown to admins"]
            if engines is None
            else engine_table(terminal, engines, is_wide=is_wide)
        ),
        "",
        *program_table(terminal, state["programs"], has_more=state["has_more"], is_wide=is_wide),
    ]


def _fetch(gateway: RemoteGateway, limit: int) -> dict[str, Any]:
    listed = gateway.programs(limit)
    return {"engines": _engines(gateway), **listed}


def _engines(gateway: RemoteGateway) -> list[dict[str, Any]] | None:
    """Return the engines; None where the key is a tenant's, which sees its own programs only."""
    try:
        engines: list[dict[str, Any]] = gateway.get("/engines")["engines"]
    except RemoteError as error:
        if error.status != FORBIDDEN:
            raise
        return None
    return engines


def _follow(gateway: RemoteGateway, args: argparse.Namespace) -> None:
    with full_screen():
        while True:
            terminal = Terminal.of_output()
            try:
                state = _fetch(gateway, max(1, terminal.height - MARGIN_LINES))
                shown = _screen(terminal, gateway.url, state, is_wide=args.wide)
            except RemoteError as error:
                # Keep running: the gateway may return.
                shown = terminal.wrapped(str(error), Style.RED)
            redraw(shown[: terminal.height])
            time.sleep(args.period)
