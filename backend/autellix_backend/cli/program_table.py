"""Tables of engines and programs for `autellix ps`, `top` and `engines`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autellix_backend.cli.program_name import is_implicit, shown_name
from autellix_backend.cli.terminal import Row, Style, Terminal
from autellix_backend.observe.durations import seconds
from autellix_backend.observe.states import ProgramState

MAX_NAMES = 3
"""Names of threads in a cell."""

Shown = Mapping[str, Any]
Columns = dict[str, Callable[[Shown], str]]
"""The text of a row's cell by heading."""

HINT = 'implicit: calls outside of any program; to open one: `with autellix.program("name"):`'

ESTIMATED = "~: estimated in part, from tokens and the gateway's own times; the engine reports none"

_STATE_STYLES = {
    "up": Style.GREEN,
    ProgramState.IN_ENGINE: Style.GREEN,
    ProgramState.WAITING_FOR_MEMORY: Style.YELLOW,
    ProgramState.WAITING_FOR_SLOT: Style.YELLOW,
}
_OF_ENDED = {
    "level": None,
    "ratio": None,
    "active_calls": 0,
    "kv_share": None,
    "state_s": None,
    "priority": None,
}
"""The cells of an ended program whose values are not known."""


def add_wide_option(parser: argparse.ArgumentParser) -> None:
    """Declare `--wide`."""
    parser.add_argument("--wide", action="store_true", help="all columns")


def program_table(
    terminal: Terminal, programs: Iterable[Shown], *, has_more: bool, is_wide: bool = False
) -> list[str]:
    """Return the lines of a table with a row per program, and notes below it."""
    rows = [{**_OF_ENDED, "age_s": program.get("duration_s"), **program} for program in programs]
    columns = _COLUMNS | _WIDE_COLUMNS if is_wide else _COLUMNS
    if all(row["level"] is None for row in rows):
        # The policy has no levels, and with them no ratio.
        columns = {heading: cell for heading, cell in columns.items() if heading not in ("LEVEL", "RATIO")}
    notes = ["... and more (--limit)"] * has_more + [HINT] * any(map(is_implicit, rows))
    notes += [ESTIMATED] * any(row.get("estimated") for row in rows)
    return _table(terminal, columns, rows, Style.DIM) + notes


def engine_table(terminal: Terminal, engines: Sequence[Shown], *, is_wide: bool = False) -> list[str]:
    """Return the lines of a table with a row per engine."""
    columns = _ENGINE_COLUMNS | _WIDE_ENGINE_COLUMNS if is_wide else _ENGINE_COLUMNS
    return _table(terminal, columns, engines, Style.RED)


def _table(terminal: Terminal, columns: Columns, rows: Sequence[Shown], other: Style) -> list[str]:
    return terminal.table(
        list(columns),
        [
            Row(cells=[cell(row) for cell in columns.values()], style=_STATE_STYLES.get(row["state"], other))
            for row in rows
        ],
    )


def _text(name: str) -> Callable[[Shown], str]:
    """Return the cell of a plain value."""
    return lambda row: "-" if row[name] in (None, "") else str(row[name])


def _time(name: str) -> Callable[[Shown], str]:
    """Return the cell of a duration (s)."""
    return lambda row: "-" if row[name] is None else seconds(row[name])


def _spent(name: str) -> Callable[[Shown], str]:
    """Return the cell of a duration (s) that is an estimate where no engine reported it."""
    return lambda row: f"{'~' if row.get('estimated') else ''}{seconds(row[name])}"


def _share(name: str) -> Callable[[Shown], str]:
    """Return the cell of a share of 1."""
    return lambda row: "-" if row[name] is None else f"{100 * row[name]:.0f} %"


def _threads(program: Shown) -> str:
    """Return the number of threads and the names of some."""
    names: Sequence[str] = program["thread_names"]
    more = ", ..." if len(names) > MAX_NAMES else ""
    return f"{program['threads']}" + (f" ({', '.join(names[:MAX_NAMES])}{more})" if names else "")


def _group(program: Shown) -> str:
    """Return the group, with the program's age over the group's median if that is known."""
    over_median = program.get("over_median")
    return (program.get("group") or "-") + ("" if over_median is None else f" ({over_median:.1f}x)")


def _active(engine: Shown) -> str:
    """Return the numbers of active and of all programs."""
    active, inactive = engine["active_programs"], engine["inactive_programs"]
    return "-" if active is None else f"{active} of {active + inactive}"


def _working_set(engine: Shown) -> str:
    tokens, capacity = engine["working_set_tokens"], engine["working_set_capacity_tokens"]
    return "-" if not capacity else f"{100 * tokens / capacity:.0f} %"


_COLUMNS: Columns = {
    "PROGRAM": _text("program_id"),
    "NAME": lambda program: shown_name(program) or "-",
    "STATE": _text("state_text"),
    "LEVEL": _text("level"),
    "SERVICE": _spent("service_s"),
    "WAIT": _spent("wait_s"),
    "OPEN": _text("active_calls"),
    "DONE": _text("finished_calls"),
    "AGE": _time("age_s"),
}
_WIDE_COLUMNS: Columns = {
    "RATIO": lambda program: "-" if program["ratio"] is None else f"{program['ratio']:.1f}",
    "THREADS": _threads,
    "KV": _share("kv_share"),
    "TOKENS IN/OUT": lambda program: f"{program['prompt_tokens']}/{program['output_tokens']}",
    "IN STATE": _time("state_s"),
    "GROUP": _group,
    "PRIORITY": _text("priority"),
    "ENGINE": lambda program: ",".join(program["engines"]) or "-",
}
_ENGINE_COLUMNS: Columns = {
    "ENGINE": _text("name"),
    "STATE": _text("state"),
    "CALLS": _text("open_calls"),
    "RUNNING": _text("running"),
    "WAITING": _text("waiting"),
    "KV": _share("kv_share"),
    "ACTIVE": _active,
    "REPORTS": _text("reporting"),
}
_WIDE_ENGINE_COLUMNS: Columns = {
    "SLOTS": _text("slots"),
    "SATURATION": _share("saturation"),
    "WORKING SET": _working_set,
    "MEMORY WAIT": _time("memory_wait_s"),
    "STEP": _time("mean_step_s"),
    "SNAPSHOT AGE": _time("snapshot_age_s"),
    "MODELS": lambda engine: ", ".join(engine["models"]) or "-",
}
