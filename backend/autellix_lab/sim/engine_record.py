"""The replay of an engine's record: the same events through a new machine, decision by decision."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.call import Call, CallRecord
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.errors import UnknownCallError
from autellix_backend.core.hints import Hints
from autellix_backend.core.machine import Machine
from autellix_backend.core.priority import Priority
from autellix_backend.core.recording import (
    ADMISSION_EVENTS,
    ASKED,
    FILL,
    FORMAT,
    MACHINE_EVENTS,
    RAISED,
    Plain,
    decision_of,
)
from autellix_backend.errors import CommandError

_KEPT_LINES, _STORY_LINES = 20_000, 12
"""The last lines in which those of a difference are looked for, and how many of them are its story."""
_ROUNDING = 1e-12
"""By so little logarithms may differ from processor to processor."""


class RecordError(CommandError):
    """A file that is no record, or one of another format."""


class _UnknownQuestionError(Exception):
    """The machine asked for something that the recorded one did not ask for."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first event in which the machine decided otherwise than the recorded one."""

    line: int
    """Its line in the record."""
    event: list[Any]
    """Its name and its arguments."""
    recorded: Any
    replayed: Any
    story: Sequence[str]
    """The last lines before it about the same calls and programs."""
    calls: Sequence[str]
    """What the machine knows of the calls by then."""


@dataclass(kw_only=True)
class RecordReplay:
    """What a replay has found so far."""

    about: dict[str, Any]
    """The first line of the record."""
    lines: int = 1
    events: Counter[str] = field(default_factory=Counter)
    """Events by name."""
    first_s: float = math.inf
    last_s: float = -math.inf
    difference: Difference | None = None

    @property
    def seconds(self) -> float:
        """The time (s) from the first to the last decision."""
        return max(0.0, self.last_s - self.first_s)


def read_record(path: Path) -> Iterator[bytes]:
    """Yield the lines of a record's file; one that was not closed ends with its last whole line.

    Raises:
        RecordError: it is not such a file.
    """
    try:
        with gzip.open(path) as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except EOFError:
        return
    except (gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(f"{path}: {error}") from error


def replay(lines: Iterable[bytes]) -> RecordReplay:
    """Replay a record up to its end or to the first difference.

    Raises:
        RecordError: it is no record, or of another format.
    """
    numbered = enumerate(lines, start=1)
    about = _first_line(next(numbered, (1, b""))[1])
    player = _Player(about)
    recent: deque[bytes] = deque(maxlen=_KEPT_LINES)
    found = RecordReplay(about=about)
    for number, line in numbered:
        found.lines = number
        try:
            event, *rest = json.loads(line)
            if event == FILL:
                player.add_fill(*rest)
                continue
            arguments, options, answers, recorded = rest
        except (ValueError, TypeError) as error:
            raise RecordError(f"line {number}: {error}") from error
        found.events[event] += 1
        if event == "tick":
            found.first_s, found.last_s = min(found.first_s, arguments[0]), arguments[0]
        replayed = player.play(event, arguments, options, answers)
        if not _are_alike(recorded, replayed):
            names = set(_names_in([recorded, replayed, arguments]))
            found.difference = Difference(
                line=number,
                event=[event, *arguments, *options.values()],
                recorded=recorded,
                replayed=replayed,
                story=_story(recent, names),
                calls=player.describe(names),
            )
            break
        recent.append(line)
    return found


def _first_line(line: bytes) -> dict[str, Any]:
    try:
        about = json.loads(line)
    except ValueError:
        about = None
    if not isinstance(about, dict) or "format" not in about:
        raise RecordError("this is no record of an engine: its first line has no format")
    if about["format"] != FORMAT:
        raise RecordError(f"the record has format {about['format']}; this version replays format {FORMAT}")
    return about


class _Player:
    """A machine, and the answers that the recorded one got."""

    def __init__(self, about: dict[str, Any]) -> None:
        self._fills: dict[tuple[int, int], int] = {}
        self._answers: deque[Any] = deque()
        config: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in about["config"].items()
        }
        try:
            self.machine = Machine(SchedulerConfig(**config), kv_tokens=about["kv_tokens"], fill=self._fill)
        except (TypeError, ValueError) as error:
            raise RecordError(f"its configuration does not fit this version: {error}") from error
        self._plain = Plain(lambda name: name)

    def add_fill(self, tokens: int, counted: int, answer: int) -> None:
        """Note how much memory a context fills."""
        self._fills[tokens, counted] = answer

    def play(self, event: str, arguments: list[Any], options: dict[str, Any], answers: list[Any]) -> Any:
        """Return the machine's decision, in plain values; that of an event which raises is RAISED."""
        self._answers, method = deque(answers), self._method(event)
        try:
            given = tuple(self._argument(event, each) for each in arguments)
        except (TypeError, ValueError, KeyError) as error:
            raise RecordError(f"an event {event!r} does not fit this version: {error}") from error
        heard = {name: self._answer if each == ASKED else each for name, each in options.items()}
        try:
            result = method(*given, **heard)
        except _UnknownQuestionError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 -- of any kind, which the recorded machine may have raised too
            return f"{RAISED} {error!r}"
        if self._answers:
            return f"asked for {len(self._answers)} answers less"
        return self._plain.of(decision_of(self.machine, event, given, result))

    def describe(self, names: Iterable[str]) -> list[str]:
        """Return a line for each of these names that is an active call."""
        lines = []
        for name in sorted(names):
            try:
                call = self.machine.call(name)
            except UnknownCallError:
                continue
            state = "runs" if call.is_running else "waits" if call.is_admitted else "waits inactive"
            lines.append(
                f"{name} of program {call.program_id}: {state}, level {call.level}, key {call.key:.6f}, "
                f"{call.service_s:.3f} s of service, {call.preemptions} preemptions"
            )
        return lines

    def _method(self, event: str) -> Callable[..., Any]:
        if event not in MACHINE_EVENTS + ADMISSION_EVENTS:
            raise RecordError(f"{event!r} is no event of a machine")
        owner = self.machine if event in MACHINE_EVENTS else self.machine.admission
        return getattr(owner, event)  # type: ignore[no-any-return]

    def _argument(self, event: str, argument: Any) -> Any:
        """Return an argument as the machine takes it."""
        if argument == ASKED:
            return self._answer
        if event == "arrive" and isinstance(argument, dict):
            context, hints = argument.pop("context"), argument.pop("hints")
            hints["priority"] = Priority(hints["priority"])
            return Arrival(
                **argument, context=None if context is None else Context(**context), hints=Hints(**hints)
            )
        if event == "charge_left" and isinstance(argument, dict):
            return CallRecord(**argument)
        if event == "charge_step" and isinstance(argument, list):
            return [self.machine.call(name) for name in argument]
        return argument

    def _answer(self, *question: Any) -> Any:
        if not self._answers:
            asked = question[0].call_id if isinstance(question[0], Call) else question
            raise _UnknownQuestionError(f"asked for one answer more, about {asked}")
        return self._answers.popleft()

    def _fill(self, tokens: int, counted: int) -> int:
        try:
            return self._fills[tokens, counted]
        except KeyError:
            problem = f"asked for the memory of {tokens} tokens, {counted} of them counted elsewhere"
            raise _UnknownQuestionError(problem) from None


def _are_alike(recorded: Any, replayed: Any) -> bool:
    """Return whether two decisions are equal, numbers but for their rounding."""
    if recorded == RAISED:
        return isinstance(replayed, str) and replayed.startswith(RAISED)
    if isinstance(recorded, float) and isinstance(replayed, int | float):
        return math.isclose(recorded, replayed, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    if isinstance(recorded, list) and isinstance(replayed, list):
        return len(recorded) == len(replayed) and all(map(_are_alike, recorded, replayed))
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        # In the same order, too.
        return list(recorded) == list(replayed) and all(map(_are_alike, recorded.values(), replayed.values()))
    return bool(recorded == replayed)


def _names_in(value: Any) -> Iterator[str]:
    """Yield the names in plain values."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, dict):
        yield from _names_in([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _names_in(each)


def _story(recent: Sequence[bytes], names: set[str]) -> list[str]:
    wanted = [f'"{name}"'.encode() for name in names]
    found = (line for line in reversed(recent) if any(name in line for name in wanted))
    return [line.decode().rstrip() for line in islice(found, _STORY_LINES)][::-1]
