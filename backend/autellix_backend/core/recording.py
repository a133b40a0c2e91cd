"""The events of a machine as lines of JSON, so that another machine can replay them (`autellix sim replay`).

A record begins with the empty machine of an engine. Its first line has the configuration; each further one is
an event: the method, its arguments, what the machine asked for meanwhile (the tokens of a call, whether a
call may run), and its decision. How contexts fill the memory has lines of its own, as an answer counts for
all events after it.

Whatever names something (a call, program, thread, tenant, group, class or prefix) is recorded as a hash with
a secret that the record does not have. All else that a machine gets is numbers and times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from functools import lru_cache
from typing import Any

from msgspec import structs

from autellix_backend.core.admission.contexts import KvFill
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.call import Call, CallRecord, LevelChange
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.machine import Machine

FORMAT = 1
"""Changes with what the lines mean."""
MACHINE_EVENTS = (
    *("arrive", "start", "preempt", "pause", "resume", "pin", "unpin", "readmit", "charge", "charge_step"),
    *("charge_left", "finish", "abort", "end_program", "forget_program", "expire", "observe_step"),
    *("observe_spread", "review", "tick", "batch"),
)
"""The methods of a machine that change it or decide."""
ADMISSION_EVENTS = ("lose_contexts", "take_to_keep", "take_stored", "use_host_memory")
"""The methods of the admission rule that the machine's owner calls."""
FILL = "fill"
"""The event of a line about how a context fills the memory."""
ASKED = "?"
"""Stands for a function among the arguments."""
RAISED = "raised"
"""The decision of an event that raised an error."""
_ANSWERS_KEPT = 1 << 14
_encode = json.JSONEncoder(separators=(",", ":")).encode


def decision_of(machine: Machine, event: str, arguments: tuple[Any, ...], result: Any) -> Any:
    """Return what a machine has decided in an event that returned something."""
    if event == "arrive":
        return _place_of(result)
    if event in ("start", "preempt"):
        return _place_of(machine.call(arguments[0]))
    if event == "review":
        return {call_id: machine.call(call_id).is_admitted for call_id in result}
    return result


def _place_of(call: Call) -> tuple[Any, ...]:
    return (call.is_admitted, *call.rank)


class Plain:
    """Turns values of a machine into what JSON has."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        """Replace each name by that which `name_of` returns for it; an empty one stays."""
        self._name_of = name_of

    def of(self, value: Any) -> Any:
        """Return a value with other names."""
        if value is None or isinstance(value, int | float | StrEnum):
            return value
        if isinstance(value, str):
            return self._name_of(value) if value else value
        if isinstance(value, Call):
            return self._name_of(value.call_id)
        if isinstance(value, CallRecord):
            # Not what a report has beside that.
            return {name: self.of(getattr(value, name)) for name in CallRecord.__struct_fields__}
        if isinstance(value, LevelChange):
            return self._fields(asdict(value))
        if isinstance(value, Context):
            prefix = None if value.prefix is None else repr(value.prefix)
            return self._fields({**structs.asdict(value), "prefix": prefix})
        if isinstance(value, Arrival | Hints):
            return self._fields(structs.asdict(value))
        if isinstance(value, Mapping):
            return {self._name_of(key): self.of(each) for key, each in value.items()}
        return ASKED if callable(value) else [self.of(each) for each in value]

    def _fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.of(each) for name, each in fields.items()}


class MachineRecorder:
    """Makes a machine whose events are written as they happen."""

    def __init__(self, write: Callable[[bytes], None], secret: bytes, about: Mapping[str, str]) -> None:
        """Write nothing yet.

        Args:
            write: Gets each line; it must not raise.
            secret: The secret of the hashes, at most 64 bytes.
            about: What the first line says beside the configuration.
        """
        self._write = write
        self._secret = secret
        self._about = about
        # The same few names come in every step.
        self._plain = Plain(lru_cache(maxsize=_ANSWERS_KEPT)(self._hash))
        self._answers: list[Any] | None = None
        """What the machine was answered in the present event; None outside of events."""

    def make_machine(self, config: SchedulerConfig, *, kv_tokens: float, fill: KvFill) -> Machine:
        """Return an empty machine, and begin its record."""
        self._write_line({"format": FORMAT, **self._about, "config": asdict(config), "kv_tokens": kv_tokens})
        machine = Machine(config, kv_tokens=kv_tokens, fill=self._recorded_fill(fill))
        for owner, events in ((machine, MACHINE_EVENTS), (machine.admission, ADMISSION_EVENTS)):
            for event in events:
                setattr(owner, event, self._recorded(machine, event, getattr(owner, event)))
        return machine

    def _recorded_fill(self, fill: KvFill) -> KvFill:
        @lru_cache(maxsize=_ANSWERS_KEPT)
        def filled(tokens: int, counted: int) -> int:
            answer = fill(tokens, counted)
            self._write_line([FILL, tokens, counted, answer])
            return answer

        return filled

    def _recorded(self, machine: Machine, event: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any, **options: Any) -> Any:
            if self._answers is not None:
                # The machine does this for another event.
                return act(*arguments, **options)
            line = [
                event,
                self._plain.of(arguments),
                {key: self._plain.of(each) for key, each in options.items()},
            ]
            heard = {key: self._overheard(each) for key, each in options.items()}
            decision: Any = RAISED
            answers = self._answers = []
            try:
                result = act(*map(self._overheard, arguments), **heard)
                decision = self._plain.of(decision_of(machine, event, arguments, result))
            finally:
                self._answers = None
                self._write_line([*line, answers, decision])
            return result

        return recorded

    def _overheard(self, argument: Any) -> Any:
        """Return a function that notes what it answers the machine; else the argument."""
        if not callable(argument):
            return argument

        def ask(*question: Any) -> Any:
            answer = argument(*question)
            if self._answers is not None:
                self._answers.append(answer)
            return answer

        return ask

    def _hash(self, name: str) -> str:
        return hashlib.blake2b(name.encode(), key=self._secret, digest_size=6).hexdigest()

    def _write_line(self, line: Any) -> None:
        self._write(_encode(line).encode() + b"\n")
