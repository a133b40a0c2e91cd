"""Program traces: the calls of programs as JSON lines.

One line is one program: its calls with their token counts and dependencies, no text. Lengths are in tokens:
`prefill_tokens` is the whole prompt, of which `shared_prefix_tokens` repeat the start of the prompt and
answer of the call `prefix_from`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from autellix_backend.errors import CommandError

MAX_S = 1e15
"""The largest time: sums of larger ones could overflow."""


class TraceError(CommandError, ValueError):
    """A trace that cannot be used; names the file, the line and the field."""

    def __init__(self, field: str, problem: str, where: str = "") -> None:
        super().__init__(f"{where}: {field} {problem}" if where else f"{field} {problem}")
        self.field = field
        self.problem = problem

    def at(self, where: str) -> TraceError:
        """Return the same error with its place."""
        return TraceError(self.field, self.problem, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """One LLM call of a program."""

    id: int
    parents: tuple[int, ...]
    thread: str
    prefill_tokens: int
    decode_tokens: int
    shared_prefix_tokens: int = 0
    prefix_from: int | None = None
    gap_before_s: float | None = None
    """Time between the end of the last parent and this call (a tool or a person); None if unknown."""
    kind: str = "chain"
    turn: int | None = None
    start_s: float | None = None
    latency_s: float | None = None
    sample_group: int | None = None

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that no earlier call of the program has sent."""
        return self.prefill_tokens - self.shared_prefix_tokens

    @property
    def context_tokens(self) -> int:
        """Prompt and answer together."""
        return self.prefill_tokens + self.decode_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTrace:
    """One run of a program: a DAG of calls, listed so that parents come first."""

    source: str
    program_id: str
    calls: tuple[CallTrace, ...]
    group: str = ""
    tokenizer: str = ""
    system_prefix_tokens: int | None = None
    arrival_s: float | None = None
    models: tuple[str, ...] = ()
    modelled: bool = False
    query_count: int | None = None
    logged_total_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.calls:
            raise TraceError("calls", "is empty")
        if not _is_time(self.arrival_s):
            raise TraceError("arrival_s", f"is {self.arrival_s}; expected null or finite seconds")
        for position, call in enumerate(self.calls):
            _check_call(call, position, self.calls)

    @property
    def decode_tokens(self) -> int:
        """Tokens that all calls of the program generate."""
        return sum(call.decode_tokens for call in self.calls)

    @property
    def is_parallel(self) -> bool:
        """Whether any two calls can run at the same time."""
        return any(call.parents != ((call.id - 1,) if call.id else ()) for call in self.calls)


_OPTIONAL = frozenset({"turn", "start_s", "latency_s", "sample_group", "query_count", "logged_total_tokens"})
"""Fields that a line leaves out if they are None."""


def program_to_line(program: ProgramTrace) -> str:
    """Return a program as a line of a trace."""
    return json.dumps(program_to_mapping(program), separators=(",", ":")) + "\n"


def program_to_mapping(program: ProgramTrace) -> dict[str, Any]:
    """Return a program as the JSON object of its line, without absent optional fields."""
    mapping = msgspec.to_builtins(program)
    calls = [_without_absent(call) for call in mapping.pop("calls")]
    return {**_without_absent(mapping), "calls": calls}


def _without_absent(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None or key not in _OPTIONAL}


def _check_call(call: CallTrace, position: int, calls: tuple[CallTrace, ...]) -> None:
    prefix, prefill = call.prefix_from, call.prefill_tokens
    if prefix is not None and not 0 <= prefix < position:
        _refuse(call, position, "prefix_from", "null or the id of an earlier call")
    longest = 0 if prefix is None else calls[prefix].context_tokens
    shared_limit = (
        "0 without prefix_from" if prefix is None else f"at most {longest}, the context of that call"
    )
    gap_s = call.gap_before_s
    for name, is_kept, expected in (
        ("id", call.id == position, f"{position}, the call's place in the list"),
        ("parents", all(0 <= parent < position for parent in call.parents), "ids of earlier calls"),
        ("prefill_tokens", prefill > 0, "more than zero"),
        ("decode_tokens", call.decode_tokens >= 0, "zero or more"),
        ("shared_prefix_tokens", 0 <= call.shared_prefix_tokens <= prefill, "0 to prefill_tokens"),
        ("shared_prefix_tokens", call.shared_prefix_tokens <= longest, shared_limit),
        ("start_s", _is_time(call.start_s), "null or finite seconds"),
        ("latency_s", _is_time(call.latency_s), "null or finite seconds"),
        ("gap_before_s", gap_s is None or 0 <= gap_s <= MAX_S, "null or finite seconds, zero or more"),
    ):
        if not is_kept:
            _refuse(call, position, name, expected)


def _is_time(seconds: float | None) -> bool:
    return seconds is None or abs(seconds) <= MAX_S


def _refuse(call: CallTrace, position: int, name: str, expected: str) -> NoReturn:
    raise TraceError(f"calls[{position}].{name}", f"is {getattr(call, name)!r}; expected {expected}")
