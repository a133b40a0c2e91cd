"""`autellix top`: engines and programs, live in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autellix_backend.cli.arguments import above_zero
from autellix_backend.cli.program_table import add_wide_option, engine_table, make_console, program_table
from autellix_backend.cli.remote import RemoteError, RemoteGateway, add_remote_options, print_json

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
    gateway, console = RemoteGateway.from_args(args), make_console()
    if args.json:
        print_json(_fetch(gateway, PLAIN_LIMIT))
    elif args.once or not console.is_terminal:
        console.print(_screen(gateway.url, _fetch(gateway, PLAIN_LIMIT), is_wide=args.wide))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(gateway, console, args)
    return 0


def _screen(url: str, state: dict[str, Any], *, is_wide: bool) -> RenderableType:
    """Return the screen for one state of the gateway."""
    engines = state["engines"]
    return Group(
        Text(f"Autellix at {url}   {time.strftime('%H:%M:%S')}   Ctrl-C quits", style="bold"),
        "",
        "engines are shown to admins" if engines is None else engine_table(engines, is_wide=is_wide),
        "",
        program_table(state["programs"], has_more=state["has_more"], is_wide=is_wide),
    )


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


def _follow(gateway: RemoteGateway, console: Console, args: argparse.Namespace) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                state = _fetch(gateway, max(1, console.height - MARGIN_LINES))
                shown = _screen(gateway.url, state, is_wide=args.wide)
            except RemoteError as error:
                # Keep running: the gateway may return.
                shown = Text(f"{error}", style="red")
            live.update(shown, refresh=True)
            time.sleep(args.period)
