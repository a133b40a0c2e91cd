"""Program traces: what a program's calls were, and the reader and writer of their JSON lines.

One line is one program: its calls with their token counts and dependencies, no text. Lengths are in tokens:
`prefill_tokens` is the whole prompt, of which `shared_prefix_tokens` repeat the start of the prompt and
answer of the call `prefix_from`.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NoReturn


class TraceError(ValueError):
    """A trace that cannot be used; names the file, the line and the field."""

    def __init__(self, field: str, problem: str, where: str = "") -> None:
        super().__init__(f"{where}: {field} {problem}" if where else f"{field} {problem}")
        self.field = field
        self.problem = problem

    def at(self, where: str) -> TraceError:
        """Return the same error with the place it was found at."""
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
        """Prompt tokens that no earlier call has shown to the engine."""
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


def read_traces(path: Path) -> list[ProgramTrace]:
    """Read a .jsonl or .jsonl.gz file of program traces.

    Raises:
        TraceError: for a file that cannot be read or a line that breaks the schema.
    """
    return list(_read_lines(path))


def write_traces(path: Path, programs: Iterable[ProgramTrace]) -> None:
    """Write programs as JSON lines, compressed if the name ends in .gz."""
    with _open(path, "wt") as file:
        for program in programs:
            file.write(json.dumps(program_to_mapping(program), separators=(",", ":")) + "\n")


def program_to_mapping(program: ProgramTrace) -> dict[str, Any]:
    """Return a program as the JSON object of its line, without absent optional fields."""
    optional = {"turn", "start_s", "latency_s", "sample_group", "query_count", "logged_total_tokens"}
    calls = [
        {
            key: value
            for key, value in dataclasses.asdict(call).items()
            if key not in optional or value is not None
        }
        for call in program.calls
    ]
    mapping = {key: value for key, value in dataclasses.asdict(program).items() if key != "calls"}
    kept = {key: value for key, value in mapping.items() if key not in optional or value is not None}
    return {**kept, "calls": calls}


def program_from_mapping(mapping: Mapping[str, Any]) -> ProgramTrace:
    """Build a program from the JSON object of its line.

    Raises:
        TraceError: for a missing, unknown or badly typed field, or a call that breaks the DAG's rules.
    """
    fields = _typed(_PROGRAM_FIELDS, mapping, prefix="")
    calls = mapping.get("calls")
    if not isinstance(calls, list):
        raise TraceError("calls", "is missing or not a list")
    fields["calls"] = tuple(_call_from_mapping(item, index) for index, item in enumerate(calls))
    return ProgramTrace(**fields)


def _call_from_mapping(item: object, index: int) -> CallTrace:
    if not isinstance(item, dict):
        raise TraceError(f"calls[{index}]", "is not an object")
    return CallTrace(**_typed(_CALL_FIELDS, item, prefix=f"calls[{index}]."))


def _read_lines(path: Path) -> Iterator[ProgramTrace]:
    try:
        with _open(path, "rt") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _read_line(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(str(path), f"cannot be read: {error}") from error


def _open(path: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, mode, encoding="utf-8")
    return path.open(mode, encoding="utf-8")


def _read_line(line: str, where: str) -> ProgramTrace:
    try:
        mapping = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError("line", f"is not JSON: {error}", where) from error
    if not isinstance(mapping, dict):
        raise TraceError("line", "is not a JSON object", where)
    try:
        return program_from_mapping(mapping)
    except TraceError as error:
        raise error.at(where) from error


def _fields(record: type[Any]) -> dict[str, tuple[Any, bool]]:
    """Return each field's type and whether a line must have it."""
    hints = typing.get_type_hints(record)
    missing = dataclasses.MISSING
    return {item.name: (hints[item.name], item.default is missing) for item in dataclasses.fields(record)}


_CALL_FIELDS = _fields(CallTrace)
_PROGRAM_FIELDS = _fields(ProgramTrace)


def _typed(fields: dict[str, tuple[Any, bool]], mapping: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    for key in mapping:
        if key not in fields:
            raise TraceError(f"{prefix}{key}", f"is unknown; expected one of {', '.join(fields)}")
    for name, (_, is_required) in fields.items():
        if is_required and name not in mapping:
            raise TraceError(f"{prefix}{name}", "is missing")
    return {
        key: _convert(value, fields[key][0], f"{prefix}{key}")
        for key, value in mapping.items()
        if key != "calls"
    }


def _convert(value: object, hint: Any, field: str) -> object:
    # By exact type: to Python, true is an int.
    if type(value) is hint:
        return value
    kind, item_kind, is_optional = _parts(hint)
    if value is None and is_optional:
        return None
    if kind is tuple:
        if isinstance(value, list):
            return tuple([_convert(item, item_kind, field) for item in value])
        raise TraceError(field, f"is {value!r}; expected a list")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind and (kind is not float or math.isfinite(value)):  # type: ignore[arg-type]
        return value
    raise TraceError(field, f"is {value!r}; expected {kind.__name__}")


@functools.cache
def _parts(hint: Any) -> tuple[Any, Any, bool]:
    """Return a hint's type, the type of a tuple's items, and whether None is allowed."""
    is_optional = isinstance(hint, types.UnionType)
    if is_optional:
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is tuple:
        return tuple, typing.get_args(hint)[0], is_optional
    return hint, None, is_optional


def _check_call(call: CallTrace, position: int, calls: tuple[CallTrace, ...]) -> None:
    if call.prefix_from is None:
        longest = 0
    elif 0 <= call.prefix_from < position:
        longest = calls[call.prefix_from].context_tokens
    else:
        _refuse(call, position, "prefix_from", "null or the id of an earlier call")
    # One test for all rules, since nearly every call of a large file keeps them.
    if not (
        call.id == position
        and (not call.parents or 0 <= min(call.parents) <= max(call.parents) < position)
        and call.prefill_tokens > 0
        and call.decode_tokens >= 0
        and 0 <= call.shared_prefix_tokens <= min(call.prefill_tokens, longest)
        and (call.gap_before_s is None or 0 <= call.gap_before_s < math.inf)
    ):
        _name_broken_rule(call, position, longest)


def _name_broken_rule(call: CallTrace, position: int, longest: int) -> None:
    if call.id != position:
        _refuse(call, position, "id", f"{position}, the call's place in the list")
    if not all(0 <= parent < position for parent in call.parents):
        _refuse(call, position, "parents", "ids of earlier calls")
    if call.prefill_tokens <= 0:
        _refuse(call, position, "prefill_tokens", "more than zero")
    if call.decode_tokens < 0:
        _refuse(call, position, "decode_tokens", "zero or more")
    if not 0 <= call.shared_prefix_tokens <= call.prefill_tokens:
        _refuse(call, position, "shared_prefix_tokens", "0 to prefill_tokens")
    if call.shared_prefix_tokens > longest:
        expected = "0 without prefix_from"
        if call.prefix_from is not None:
            expected = f"at most {longest}, what that call held"
        _refuse(call, position, "shared_prefix_tokens", expected)
    _refuse(call, position, "gap_before_s", "null or finite seconds, zero or more")


def _refuse(call: CallTrace, position: int, name: str, expected: str) -> NoReturn:
    raise TraceError(f"calls[{position}].{name}", f"is {getattr(call, name)!r}; expected {expected}")
