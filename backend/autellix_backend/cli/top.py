"""`autellix top`: engines and programs, live in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autellix_backend.cli.arguments import above_zero
from autellix_backend.cli.program_table import engine_table, make_console, program_table
from autellix_backend.cli.remote import RemoteError, RemoteGateway, add_remote_options, print_json

DEFAULT_PERIOD_S = 1.0
MARGIN_LINES = 8
"""Lines of the screen without programs."""
PLAIN_LIMIT = 50
QUIT_KEYS = "qQ"
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


def run(args: argparse.Namespace) -> int:
    """Show the gateway until q or Ctrl-C."""
    gateway, console = RemoteGateway.from_args(args), make_console()
    if args.json:
        print_json(_fetch(gateway, PLAIN_LIMIT))
    elif args.once or not console.is_terminal:
        console.print(screen(gateway.url, _fetch(gateway, PLAIN_LIMIT), console.width))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(gateway, console, args.period)
    return 0


def screen(url: str, state: dict[str, Any], width: int) -> RenderableType:
    """Return the screen for one state of the gateway."""
    programs = program_table(state["programs"], has_more=state["has_more"], width=width)
    engines = state["engines"]
    shown = Text("engines are shown to admins") if engines is None else engine_table(engines, width=width)
    title = Text(f"Autellix at {url}   {time.strftime('%H:%M:%S')}   q quits", style="bold")
    return Group(title, "", shown, "", programs)


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


def _follow(gateway: RemoteGateway, console: Console, period_s: float) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live, _single_keys():
        while True:
            try:
                state = _fetch(gateway, max(1, console.height - MARGIN_LINES))
                shown = screen(gateway.url, state, console.width)
            except RemoteError as error:
                # Keep running: the gateway may return.
                shown = Text(f"{error}", style="red")
            live.update(shown, refresh=True)
            if _quits(period_s):
                return


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Deliver keys one by one, without Enter, if standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quits(period_s: float) -> bool:
    """Wait for the next refresh; return whether the user pressed a quit key."""
    if not sys.stdin.isatty():
        time.sleep(period_s)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], period_s)
    return bool(ready) and sys.stdin.read(1) in QUIT_KEYS
