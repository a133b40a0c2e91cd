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

_STATE_STYLES = {"running": "green", "waiting": "yellow", "ending": "magenta", "idle": "dim"}


def make_console() -> Console:
    """Return a console that truncates nothing in a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def program_table(programs: list[dict[str, Any]], *, has_more: bool) -> Table:
    """Return a table with one line per program."""
    table = Table(box=None, header_style="bold", caption="... and more (--limit)" if has_more else None)
    for heading, _, is_number in _COLUMNS:
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    for program in programs:
        style = _STATE_STYLES.get(program["state"])
        table.add_row(*(cell(program) for _, cell, _ in _COLUMNS), style=style)
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
