"""Tables of engines and programs for `autellix ps`, `top` and `engines`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from autellix_backend.observe.durations import seconds

PLAIN_WIDTH = 200
"""The width of tables in a file or a pipe."""

Shown = Mapping[str, Any]

_STATE_STYLES = {"running": "green", "waiting": "yellow", "ending": "magenta", "idle": "dim", "ended": "dim"}
_OF_ENDED = {"level": "-", "ratio": None, "active_calls": 0, "kv_share": None, "idle_s": 0.0}
"""The cells of an ended program whose values are not known."""
_PADDING = 2
_LEAST_NEEDED = (
    *("KV", "LEVEL", "RATIO", "THREADS", "IDLE", "TOKENS IN/OUT", "ENGINE"),
    *("OPEN", "SERVICE", "DONE", "NAME", "WAIT"),
)
"""The columns that a narrow terminal drops, in this order."""
_LEAST_NEEDED_OF_ENGINES = (
    *("SNAPSHOT", "STEP", "MEMORY WAIT", "WORKING SET", "ACTIVE", "SLOTS", "CALLS", "KV"),
    *("REPORTS", "RUNNING", "WAITING"),
)


def add_wide_option(parser: argparse.ArgumentParser) -> None:
    """Declare `--wide`."""
    parser.add_argument("--wide", action="store_true", help="all columns, however narrow the terminal is")


def make_console(*, is_wide: bool = False) -> Console:
    """Return a console that does not cut lines in a file or pipe, or where it `is_wide`."""
    console = Console()
    return console if console.is_terminal and not is_wide else Console(width=PLAIN_WIDTH)


def program_table(programs: list[dict[str, Any]], *, has_more: bool, width: int) -> Table:
    """Return a table with one line per program, of at most this width unless the ids are wider."""
    rows = [{**_OF_ENDED, "age_s": program.get("duration_s"), **program} for program in programs]
    columns = {heading: [cell(row) for row in rows] for heading, cell, _ in _COLUMNS}
    return _fitted_table(
        columns,
        width=width,
        least_needed=_LEAST_NEEDED,
        numbers={heading for heading, _, is_number in _COLUMNS if is_number},
        styles=[_STATE_STYLES.get(program["state"]) for program in rows],
        caption="... and more (--limit)" if has_more else None,
    )


def engine_table(engines: list[dict[str, Any]], *, width: int) -> Table:
    """Return a table with one line per engine, of at most this width unless the names are wider."""
    return _fitted_table(
        {heading: [cell(engine) for engine in engines] for heading, cell in _ENGINE_COLUMNS},
        width=width,
        least_needed=_LEAST_NEEDED_OF_ENGINES,
        styles=["green" if engine["state"] == "up" else "red" for engine in engines],
    )


def _fitted_table(
    columns: dict[str, list[str]],
    *,
    width: int,
    least_needed: Sequence[str],
    numbers: Collection[str] = (),
    styles: Sequence[str | None],
    caption: str | None = None,
) -> Table:
    """Return a table without the columns that do not fit into a narrow terminal.

    The first column has the ids, which other commands need: they are folded, never cut.
    """
    columns = dict(columns)
    widths = {heading: max(map(len, [heading, *cells])) + _PADDING for heading, cells in columns.items()}
    for heading in least_needed:
        if sum(widths[shown] for shown in columns) <= width:
            break
        del columns[heading]
    table = Table(box=None, header_style="bold", caption=caption)
    for position, heading in enumerate(columns):
        table.add_column(
            heading,
            justify="right" if heading in numbers else "left",
            no_wrap=position > 0,
            overflow="ellipsis" if position else "fold",
        )
    for style, cells in zip(styles, zip(*columns.values(), strict=True), strict=True):
        table.add_row(*cells, style=style)
    return table


def _active(engine: Shown) -> str:
    """Return the numbers of active and of all programs."""
    active, inactive = engine["active_programs"], engine["inactive_programs"]
    return "-" if active is None else f"{active} of {active + inactive}"


def _working_set(engine: Shown) -> str:
    tokens, capacity = engine["working_set_tokens"], engine["working_set_capacity_tokens"]
    return "-" if not capacity else _percent(tokens / capacity)


def _snapshot(engine: Shown) -> str:
    age_s = engine["snapshot_age_s"]
    return "-" if age_s is None else f"{seconds(age_s)} old"


def _number(value: object) -> str:
    return "-" if value is None else str(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _time(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _ratio(program: Shown) -> str:
    return "-" if program["ratio"] is None else f"{program['ratio']:.1f}"


_COLUMNS: tuple[tuple[str, Callable[[Shown], str], bool], ...] = (
    ("PROGRAM", lambda program: str(program["program_id"]), False),
    ("NAME", lambda program: program["name"] or "-", False),
    ("STATE", lambda program: str(program["state"]), False),
    ("LEVEL", lambda program: str(program["level"]), True),
    ("SERVICE", lambda program: seconds(program["service_s"]), True),
    ("WAIT", lambda program: seconds(program["wait_s"]), True),
    ("RATIO", _ratio, True),
    ("OPEN", lambda program: str(program["active_calls"]), True),
    ("DONE", lambda program: str(program["finished_calls"]), True),
    ("THREADS", lambda program: str(program["threads"]), True),
    ("KV", lambda program: _percent(program["kv_share"]), True),
    ("TOKENS IN/OUT", lambda program: f"{program['prompt_tokens']}/{program['output_tokens']}", True),
    ("IDLE", lambda program: seconds(program["idle_s"]) if program["state"] == "idle" else "-", True),
    ("AGE", lambda program: seconds(program["age_s"]), True),
    ("ENGINE", lambda program: ",".join(program["engines"]) or "-", False),
)
"""Heading, the text of a program's cell, and whether it is a number."""

_ENGINE_COLUMNS: tuple[tuple[str, Callable[[Shown], str]], ...] = (
    ("ENGINE", lambda engine: str(engine["name"])),
    ("STATE", lambda engine: str(engine["state"])),
    ("CALLS", lambda engine: _number(engine["open_calls"])),
    ("RUNNING", lambda engine: _number(engine["running"])),
    ("SLOTS", lambda engine: _number(engine["slots"])),
    ("WAITING", lambda engine: _number(engine["waiting"])),
    ("KV", lambda engine: _percent(engine["kv_share"])),
    ("ACTIVE", lambda engine: _active(engine)),
    ("WORKING SET", lambda engine: _working_set(engine)),
    ("MEMORY WAIT", lambda engine: _time(engine["memory_wait_s"])),
    ("STEP", lambda engine: _time(engine["mean_step_s"])),
    ("SNAPSHOT", lambda engine: _snapshot(engine)),
    ("REPORTS", lambda engine: str(engine["reporting"])),
)
"""Heading, and the text of an engine's cell."""
