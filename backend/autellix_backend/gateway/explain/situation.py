"""Where open calls are: held at the gateway, waiting or running in an engine, as far as the engine tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from autellix_backend.core.snapshot import CallStanding, EngineSnapshot
from autellix_backend.stores.base import ProgramView


class CallState(StrEnum):
    """Where an open call is."""

    HELD = "held"
    """At the gateway, which has not sent it yet."""
    WAITING = "waiting"
    RUNNING = "running"
    SENT = "sent"
    """In an engine that has not told of it: it sends no snapshots, or none since the call came."""


class ProgramState(StrEnum):
    """What a program is doing."""

    RUNNING = "running"
    WAITING = "waiting"
    """All its open calls wait."""
    IDLE = "idle"
    """It has no open call: its tools run, or somebody thinks."""
    ENDING = "ending"
    """It was ended; its open calls are its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCallView:
    """A call between its two ends, as the gateway knows it."""

    key: str
    """Its id in the engine."""
    call_id: str
    program_id: str
    thread_id: str
    engine: str
    open_s: float
    """How long it has been open."""
    level: int
    """The level that it was to enter the engine's queues at."""
    entry_service_s: float
    """The service that the policy let it start with."""
    held: str | None = None
    """Why the gateway has not sent it yet; None once it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """What the gateway knows of an engine."""

    name: str
    failure: str | None = None
    """Why it is gone; None while it lives."""
    sends_snapshots: bool = True
    snapshot: EngineSnapshot | None = None
    age_s: float | None = None
    """How old the snapshot is."""


def call_state(call: OpenCallView, standing: CallStanding | None, engine: EngineView | None) -> CallState:
    """Tell where an open call is."""
    if call.held is not None:
        return CallState.HELD
    if standing is not None:
        return CallState.RUNNING if standing.is_running else CallState.WAITING
    has_tail = engine is not None and engine.snapshot is not None and engine.snapshot.left_out > 0
    return CallState.WAITING if has_tail else CallState.SENT


def program_state(view: ProgramView, calls: Iterable[CallState]) -> ProgramState:
    """Tell what a program is doing, from the states of its open calls."""
    if not view.active_calls:
        return ProgramState.IDLE
    if view.is_ending:
        return ProgramState.ENDING
    states = set(calls)
    # Calls that only another gateway knows count as running.
    is_waiting = bool(states) and states <= {CallState.HELD, CallState.WAITING}
    return ProgramState.WAITING if is_waiting else ProgramState.RUNNING


class Situation:
    """One moment's open calls and engines, indexed for questions about many programs."""

    def __init__(self, calls: Iterable[OpenCallView], engines: Mapping[str, EngineView]) -> None:
        self.engines = engines
        self._calls: dict[str, list[OpenCallView]] = {}
        for call in calls:
            self._calls.setdefault(call.program_id, []).append(call)
        self._standings: dict[str, CallStanding] = {}
        for engine in engines.values():
            # In queue order: of parallel choices the last stays.
            for standing in engine.snapshot.calls if engine.snapshot is not None else ():
                self._standings[standing.call_id] = standing

    def calls_of(self, program_id: str) -> list[OpenCallView]:
        """Return a program's open calls, oldest first."""
        return self._calls.get(program_id, [])

    def standing(self, call: OpenCallView) -> CallStanding | None:
        """Return where a call stands in its engine, if that has told."""
        return self._standings.get(call.key)

    def state_of(self, call: OpenCallView) -> CallState:
        """Tell where a call is."""
        return call_state(call, self.standing(call), self.engines.get(call.engine))

    def program_state(self, view: ProgramView) -> ProgramState:
        """Tell what a program is doing."""
        return program_state(view, map(self.state_of, self.calls_of(view.program_id)))
