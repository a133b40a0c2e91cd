"""TraceLab's coding sessions: JSON lines, one LLM call of Claude Code or Codex each.

Source: github.com/uw-syfi/TraceLab, artifacts/utils/DB_SCHEMA.md and docs/prompt_cache_accounting.md, read at
commit 0b8a262; the lines are a release asset, syfi_coding_trace.jsonl.gz. Of a line: `session_id`,
`round_index`, `round_id`, `project`, `model`, `input_tokens_total`, `prefix_tokens` (those that the provider
had cached), `output_tokens`, and `timing_events` with `event_type` and `timestamp`.

A session is a program of one thread; subagents have sessions of their own, and nothing relates them. A line
that repeats a call of its session is left out, as are those without a prompt. A prompt that is no shorter
than the one before repeats all of it, even if the provider had dropped a part; a shorter one, as after a
compaction, repeats what the provider found. What it found of the first prompt is taken as a system prefix.

A call starts at the last message or tool result before its first output, and ends at its last output. Gaps
are what lies between; a call without these events has neither start nor gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

from autellix_lab.workload.loaders.base import LoadOptions, Record, read_json_lines
from autellix_lab.workload.trace import CallTrace, ProgramTrace

_INPUTS = ("user_message", "tool_result")
_OUTPUTS = ("reasoning", "text", "tool_call")
_KINDS = {"user_message": "human", "tool_result": "tool"}


@dataclass(slots=True)
class _Round:
    """One line; times are in seconds since 1970."""

    record: Record
    index: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    kind: str
    start_s: float | None
    end_s: float | None


def load_tracelab(path: Path, _options: LoadOptions) -> list[ProgramTrace]:
    """Load the sessions of a file, in the order in which they first occur.

    Raises:
        TraceError: for a broken line; names the line and the field.
    """
    sessions: dict[str, dict[tuple[int, str], _Round]] = {}
    for record in read_json_lines(path):
        found = _round(record)
        session = sessions.setdefault(record.get("session_id", str), {})
        if found.prompt_tokens:
            session.setdefault((found.index, record.find("round_id", str) or record.where), found)
    programs = {name: sorted(found.values(), key=attrgetter("index")) for name, found in sessions.items()}
    starts = [rounds[0].start_s for rounds in programs.values() if rounds]
    origin_s = min((start for start in starts if start is not None), default=0.0)
    return [_program(name, rounds, origin_s) for name, rounds in programs.items() if rounds]


def _round(record: Record) -> _Round:
    events = record.records("timing_events") if record.values.get("timing_events") else []
    times = [(_seconds(event), event.get("event_type", str)) for event in events]
    outputs = [time_s for time_s, kind in times if kind in _OUTPUTS]
    inputs = [(time_s, kind) for time_s, kind in times if kind in _INPUTS]
    start_s, kind = max(
        (found for found in inputs if found[0] <= min(outputs, default=math.inf)), default=(None, "")
    )
    return _Round(
        record=Record({name: record.values.get(name) for name in ("project", "model")}, record.where),
        index=record.get("round_index", int),
        prompt_tokens=record.count("input_tokens_total"),
        cached_tokens=record.count("prefix_tokens"),
        output_tokens=record.count("output_tokens"),
        kind=_KINDS.get(kind, "unknown"),
        start_s=start_s,
        end_s=max(outputs, default=None),
    )


def _seconds(event: Record) -> float:
    text = event.get("timestamp", str)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        problem = f"is {text!r}; expected a date and time such as 2026-06-01T05:40:20.151Z"
        raise event.error("timestamp", problem) from None
    # Times of the source are in UTC, with or without a Z.
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _program(name: str, rounds: list[_Round], origin_s: float) -> ProgramTrace:
    first = rounds[0]
    models = [found.record.find("model", str) for found in rounds]
    calls = [
        _call(number, found, rounds[number - 1] if number else None, first.start_s)
        for number, found in enumerate(rounds)
    ]
    return first.record.program(
        source="tracelab",
        program_id=name,
        group=first.record.find("project", str) or name,
        tokenizer="as recorded",
        models=tuple(dict.fromkeys(model for model in models if model)),
        system_prefix_tokens=min(first.cached_tokens, first.prompt_tokens) or None,
        arrival_s=_between(origin_s, first.start_s),
        calls=tuple(calls),
    )


def _call(number: int, found: _Round, before: _Round | None, origin_s: float | None) -> CallTrace:
    shared, gap_s = 0, None
    if before is not None:
        repeated = before.prompt_tokens if found.prompt_tokens >= before.prompt_tokens else 0
        longest = min(found.prompt_tokens, before.prompt_tokens + before.output_tokens)
        shared = min(max(repeated, found.cached_tokens), longest)
        gap_s = _between(before.end_s, found.start_s)
    return CallTrace(
        id=number,
        parents=() if before is None else (number - 1,),
        thread="main",
        prefill_tokens=found.prompt_tokens,
        decode_tokens=found.output_tokens,
        shared_prefix_tokens=shared,
        prefix_from=number - 1 if shared else None,
        gap_before_s=None if gap_s is None else max(0.0, gap_s),
        kind="root" if before is None else found.kind,
        start_s=_between(origin_s, found.start_s),
        latency_s=_between(found.start_s, found.end_s),
    )


def _between(begin_s: float | None, end_s: float | None) -> float | None:
    # To the millisecond, as recorded: differences of large numbers have noise behind it.
    return None if begin_s is None or end_s is None else round(end_s - begin_s, 3)
