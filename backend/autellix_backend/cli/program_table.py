"""Tables of engines and programs for `autellix ps`, `top` and `engines`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from autellix_backend.observe.durations import seconds

PLAIN_WIDTH = 200
"""The width of tables in a file or a pipe."""

_ENGINE_HEADINGS = (
    *("ENGINE", "STATE", "CALLS", "RUNNING", "SLOTS", "WAITING", "KV", "ACTIVE", "WORKING SET"),
    *("MEMORY WAIT", "STEP", "SNAPSHOT", "REPORTS"),
)

Shown = Mapping[str, Any]

_STATE_STYLES = {"running": "green", "waiting": "yellow", "ending": "magenta", "idle": "dim", "ended": "dim"}
_OF_ENDED = {"level": "-", "ratio": None, "active_calls": 0, "kv_share": None, "idle_s": 0.0}
"""What the table shows of a program that has ended, besides what is known of it."""
_ID_HEADING = "PROGRAM"
_PADDING = 2
_LEAST_NEEDED = (
    *("KV", "LEVEL", "RATIO", "THREADS", "IDLE", "TOKENS IN/OUT", "ENGINE"),
    *("OPEN", "SERVICE", "DONE", "NAME", "WAIT"),
)
"""The columns that a narrow terminal does without, the first one first."""


def make_console() -> Console:
    """Return a console that truncates nothing in a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def program_table(programs: list[dict[str, Any]], *, has_more: bool, width: int) -> Table:
    """Return a table with one line per program; one of this width, unless the ids alone are wider.

    Ids are never cut, because other commands need them.
    """
    rows = [{**_OF_ENDED, "age_s": program.get("duration_s"), **program} for program in programs]
    columns = {heading: [cell(row) for row in rows] for heading, cell, _ in _COLUMNS}
    widths = {heading: max(map(len, [heading, *cells])) + _PADDING for heading, cells in columns.items()}
    for heading in _LEAST_NEEDED:
        if sum(widths[shown] for shown in columns) <= width:
            break
        del columns[heading]
    table = Table(box=None, header_style="bold", caption="... and more (--limit)" if has_more else None)
    numbers = {heading for heading, _, is_number in _COLUMNS if is_number}
    for heading in columns:
        is_id = heading == _ID_HEADING
        table.add_column(
            heading,
            justify="right" if heading in numbers else "left",
            no_wrap=not is_id,
            overflow="fold" if is_id else "ellipsis",
        )
    for program, cells in zip(rows, zip(*columns.values(), strict=True), strict=True):
        table.add_row(*cells, style=_STATE_STYLES.get(program["state"]))
    return table


def engine_table(engines: list[dict[str, Any]]) -> Table:
    """Return a table with one line per engine."""
    table = Table(box=None, header_style="bold")
    for heading in _ENGINE_HEADINGS:
        table.add_column(heading, no_wrap=True)
    for engine in engines:
        table.add_row(
            engine["name"],
            engine["state"],
            _number(engine["open_calls"]),
            _number(engine["running"]),
            _number(engine["slots"]),
            _number(engine["waiting"]),
            _percent(engine["kv_share"]),
            _active(engine),
            _working_set(engine),
            _time(engine["memory_wait_s"]),
            _time(engine["mean_step_s"]),
            "-" if engine["snapshot_age_s"] is None else f"{seconds(engine['snapshot_age_s'])} old",
            engine["reporting"],
            style="green" if engine["state"] == "up" else "red",
        )
    return table


def _active(engine: Shown) -> str:
    """Return the active programs, and all that are present."""
    active, inactive = engine["active_programs"], engine["inactive_programs"]
    return "-" if active is None else f"{active} of {active + inactive}"


def _working_set(engine: Shown) -> str:
    tokens, capacity = engine["working_set_tokens"], engine["working_set_capacity_tokens"]
    return "-" if not capacity else _percent(tokens / capacity)


def _number(value: object) -> str:
    return "-" if value is None else str(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _time(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _ratio(program: Shown) -> str:
    return "-" if program["ratio"] is None else f"{program['ratio']:.1f}"


_COLUMNS: tuple[tuple[str, Callable[[Shown], str], bool], ...] = (
    (_ID_HEADING, lambda program: str(program["program_id"]), False),
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
