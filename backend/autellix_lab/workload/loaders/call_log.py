"""A gateway's call log (`observe.call_log`), one JSON line per settled call; logs of several gateways may be
joined.

A program is the calls of one tenant with one program id, up to a call that its client marked as the last one.
Derived values:

- `parents`: the calls that the client named, else the last call of the same thread that had ended;
- `gap_before_s`: from the end of the last parent, or from the program's first arrival;
- `shared_prefix_tokens`: the cached tokens, at most the context of the thread's last call, else of a parent.

A call without work (refused, or without an engine) is left out, and its children depend on its parents. A
program with an answer whose tokens are unknown is left out as a whole.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autellix_lab.workload.loaders.base import LoadOptions, Record, read_json_lines
from autellix_lab.workload.trace import CallTrace, ProgramTrace

ROUNDING_S = 1e-5
"""Times are rounded: a call that arrives this little before another ended may have waited for it."""
UNNAMED = "unnamed"

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _LoggedCall:
    record: Record
    call_id: str
    thread: str
    start_s: float
    finish_s: float
    prompt_tokens: int
    parents: tuple[_LoggedCall, ...] = ()
    previous: _LoggedCall | None = None
    """The last call of its thread that had ended when it began; it most likely extends that prompt."""

    @property
    def is_kept(self) -> bool:
        """Whether the engine's work for it is known."""
        return self.prompt_tokens > 0

    @property
    def has_lost_tokens(self) -> bool:
        """Whether it was answered, but its tokens are unknown."""
        return not self.is_kept and self.record.get("outcome", str) == "ok"

    def had_ended(self, now_s: float) -> bool:
        """Return whether it had ended when another call began."""
        return self.finish_s <= now_s + ROUNDING_S


@dataclass(slots=True)
class _LoggedProgram:
    name: str
    calls: list[_LoggedCall] = field(default_factory=list)

    def has_ended(self, now_s: float) -> bool:
        """Return whether it had ended when a call of its id began."""
        is_final = any(call.record.find("is_final", bool) for call in self.calls)
        return is_final and all(call.had_ended(now_s) for call in self.calls)


def load_call_log(path: Path, _options: LoadOptions) -> list[ProgramTrace]:
    """Load a .jsonl or .jsonl.gz file of settled calls.

    Raises:
        TraceError: for a broken line; names the line and the field.
    """
    calls = sorted(map(_logged_call, read_json_lines(path)), key=lambda call: (call.start_s, call.finish_s))
    programs = _programs(calls)
    whole = [each for each in programs if not any(call.has_lost_tokens for call in each.calls)]
    if len(whole) < len(programs):
        lost = len(programs) - len(whole)
        logger.warning("%s: %d programs are left out, for the tokens of an answer are unknown", path, lost)
    return [_trace(each, calls[0].start_s) for each in whole if any(call.is_kept for call in each.calls)]


def _logged_call(record: Record) -> _LoggedCall:
    text = record.get("time", str)
    try:
        finish_s = datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise record.error("time", f"is {text!r}; expected a time of ISO 8601") from None
    return _LoggedCall(
        record=record,
        call_id=record.get("call_id", str),
        thread=record.get("thread_id", str),
        start_s=finish_s - record.get("duration_s", float),
        finish_s=finish_s,
        prompt_tokens=record.find("prompt_tokens", int) or 0,
    )


def _programs(calls: Iterable[_LoggedCall]) -> list[_LoggedProgram]:
    """Return the programs of calls in the order of their arrival, each call with its parents."""
    programs: list[_LoggedProgram] = []
    latest: dict[str, _LoggedProgram] = {}
    for call in calls:
        tenant, program_id = call.record.find("tenant", str), call.record.get("program_id", str)
        scoped_id = f"{tenant}/{program_id}" if tenant else program_id
        program = latest.get(scoped_id)
        if program is None or program.has_ended(call.start_s):
            program = latest[scoped_id] = _LoggedProgram(scoped_id)
            programs.append(program)
        _join(program, call)
    return programs


def _join(program: _LoggedProgram, call: _LoggedCall) -> None:
    ended = [each for each in program.calls if each.thread == call.thread and each.had_ended(call.start_s)]
    call.previous = max(ended, key=lambda each: each.finish_s, default=None)
    named = call.record.find("parents", list)
    by_id = {each.call_id: each for each in program.calls}
    call.parents = tuple(by_id[parent] for parent in call.record.names("parents") if parent in by_id)
    if not call.parents and named != [] and call.previous is not None:
        call.parents = (call.previous,)
    program.calls.append(call)


def _trace(program: _LoggedProgram, origin_s: float) -> ProgramTrace:
    kept = [call for call in program.calls if call.is_kept]
    numbers = {call: number for number, call in enumerate(kept)}
    first = program.calls[0]
    names = (call.record.find("program_name", str) for call in program.calls)
    return first.record.program(
        source=next(filter(None, names), UNNAMED),
        program_id=program.name,
        arrival_s=first.start_s - origin_s,
        calls=tuple(_call_trace(call, numbers, first.start_s) for call in kept),
    )


def _call_trace(call: _LoggedCall, numbers: dict[_LoggedCall, int], start_s: float) -> CallTrace:
    parents = list(dict.fromkeys(_kept(call.parents)))
    ready_s = max((parent.finish_s for parent in parents), default=start_s)
    extended = next(_kept(() if call.previous is None else (call.previous,)), None)
    extended = extended or max(parents, key=lambda parent: parent.finish_s, default=None)
    cached_tokens = call.record.find("cached_tokens", int) or 0
    shared_tokens = 0
    if extended is not None:
        context_tokens = extended.prompt_tokens + (extended.record.find("output_tokens", int) or 0)
        shared_tokens = min(cached_tokens, context_tokens, call.prompt_tokens)
    return CallTrace(
        id=numbers[call],
        parents=tuple(sorted(numbers[parent] for parent in parents)),
        thread=call.thread,
        prefill_tokens=call.prompt_tokens,
        decode_tokens=call.record.find("output_tokens", int) or 0,
        shared_prefix_tokens=shared_tokens,
        prefix_from=numbers[extended] if extended is not None and shared_tokens else None,
        gap_before_s=round(max(0.0, call.start_s - ready_s), 6),
        kind="chain" if parents else "root",
        start_s=round(call.start_s - start_s, 6),
        latency_s=call.record.get("duration_s", float),
    )


def _kept(calls: Iterable[_LoggedCall]) -> Iterator[_LoggedCall]:
    """Iterate over calls, with the nearest kept ancestors in place of those that are not in the trace."""
    for call in calls:
        if call.is_kept:
            yield call
        else:
            yield from _kept(call.parents)
