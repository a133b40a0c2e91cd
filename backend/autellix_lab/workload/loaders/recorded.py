"""Recorded program traces: the schema of `workload/schema.py`, where a line may leave fields out.

Source: this project; docs/bench.md#workloads describes every field. Of a call only `prefill_tokens` and
`decode_tokens` are required. Missing fields are filled in as follows:

- `program_id`: the file's name and the line; `group`: the program's id; `source`: "recorded";
- `id`: the call's place; `thread`: "main"; `kind`: "root" for a first call, else "chain";
- `parents`: the last earlier call of the same thread, none for a thread's first call;
- `prefix_from`: the first parent, if `shared_prefix_tokens` is above zero;
- `gap_before_s`: from `start_s` and `latency_s` where the call and all its parents have them, else unknown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autellix_lab.workload.loaders.base import LoadOptions, Record, read_json_lines
from autellix_lab.workload.trace import ProgramTrace, TraceError
from autellix_lab.workload.trace_files import program_from_mapping


def load_recorded(path: Path, _options: LoadOptions) -> list[ProgramTrace]:
    """Load a .jsonl or .jsonl.gz file of complete or partly filled lines.

    Raises:
        TraceError: for a broken line; names the line and the field.
    """
    stem = path.name.split(".")[0]
    return [_program(record, f"{stem}_{number}") for number, record in enumerate(read_json_lines(path))]


def _program(record: Record, default_id: str) -> ProgramTrace:
    filled = {"source": "recorded", "program_id": default_id, **record.values}
    filled.setdefault("group", filled["program_id"])
    last: dict[str, int] = {}
    calls: list[dict[str, Any]] = []
    for position, call in enumerate(record.records("calls")):
        calls.append(_call(dict(call.values), position, calls, last))
        last[str(calls[-1]["thread"])] = position
    try:
        return program_from_mapping({**filled, "calls": calls})
    except TraceError as error:
        raise error.at(record.where) from error


def _call(
    call: dict[str, Any], position: int, earlier: list[dict[str, Any]], last: dict[str, int]
) -> dict[str, Any]:
    call.setdefault("id", position)
    thread = call.setdefault("thread", "main")
    previous = last.get(str(thread))
    parents = call.setdefault("parents", [] if previous is None else [previous])
    call.setdefault("kind", "chain" if parents else "root")
    if (
        call.get("shared_prefix_tokens")
        and "prefix_from" not in call
        and parents
        and isinstance(parents, list)
    ):
        call["prefix_from"] = parents[0]
    if "gap_before_s" not in call:
        call["gap_before_s"] = _gap_s(call, earlier)
    return call


def _gap_s(call: dict[str, Any], earlier: list[dict[str, Any]]) -> float | None:
    """Return None for anything unexpected: the schema's own check names a field of a wrong type."""
    try:
        ends = [earlier[parent]["start_s"] + earlier[parent]["latency_s"] for parent in call["parents"]]
        return round(max(0.0, float(call["start_s"] - max(ends))), 6)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
