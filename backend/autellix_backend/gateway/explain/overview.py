"""Where open calls are: at the gateway, or waiting or running in an engine by its last snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.reports.snapshot import CallSnapshot, EngineSnapshot
from autellix_backend.stores.base import ProgramView

_ABSENT = (None, None)


class OpenCallState(StrEnum):
    """Where an open call is."""

    QUEUED = "queued"
    """At the gateway, in the queue of its engine."""
    WAITING = "waiting"
    """In the engine, without a slot."""
    RUNNING = "running"
    SENT = "sent"
    """In an engine that sends no snapshots, or whose last one does not show the call."""


class ProgramState(StrEnum):
    """What a program is doing."""

    RUNNING = "running"
    WAITING = "waiting"
    """All its open calls wait."""
    IDLE = "idle"
    """It has no open call."""
    ENDING = "ending"
    """It was ended and leaves with its last open call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """What the gateway knows of an engine."""

    failure: str | None = None
    """Why it is down; None while it is up."""
    sends_snapshots: bool = True
    silence: str = "that engine does not report its queue"
    """How explanations describe an engine that sends none."""
    snapshot: EngineSnapshot | None = None
    """Its last snapshot; None while it is down, because the last one is out of date."""
    ranks: tuple[EngineSnapshot, ...] = ()
    """The last snapshot of each data-parallel rank; `snapshot` is their sum."""
    age_s: float | None = None
    """The snapshot's age."""
    why_queued: Callable[[str], str | None] = lambda _: None
    """Returns why the call of a key waits at the gateway; None once the call was sent."""


def engine_view(handle: EngineHandle) -> EngineView:
    """Return what is known of an engine."""
    is_up = handle.supervisor.is_up
    return EngineView(
        failure=None if is_up else handle.engine.failure() or handle.supervisor.problem,
        sends_snapshots=handle.sends_reports,
        silence=_silence_of(handle),
        snapshot=handle.snapshots.merged if is_up else None,
        ranks=tuple(handle.snapshots.by_rank.values()) if is_up else (),
        age_s=handle.snapshot_age_s if is_up else None,
        why_queued=handle.queue.why_queued,
    )


def _silence_of(handle: EngineHandle) -> str:
    problem = handle.reporting.problem
    silence = "that engine does not report its queue"
    return silence if problem is None else f"{silence} ({problem})"


class Overview:
    """The open calls and engines at one moment, indexed by program."""

    def __init__(self, calls: Iterable[GatewayCall], engines: Mapping[str, EngineView], now: float) -> None:
        self.engines = engines
        self.now = now
        """The moment, on the store's clock."""
        self._calls: dict[str, list[GatewayCall]] = {}
        for call in calls:
            self._calls.setdefault(call.start.program_id, []).append(call)
        self._in_engines: dict[str, tuple[CallSnapshot, EngineSnapshot]] = {}
        for snapshot in chain.from_iterable(engine.ranks for engine in engines.values()):
            # In queue order, so the last of a call's parallel choices counts.
            self._in_engines.update((entry.call_id, (entry, snapshot)) for entry in snapshot.calls)

    def calls_of(self, program_id: str) -> list[GatewayCall]:
        """Return a program's open calls, oldest first."""
        return self._calls.get(program_id, [])

    def engines_of(self, program_id: str) -> dict[str, EngineView | None]:
        """Return the engines of a program's open calls by name; None for one that has left."""
        return {call.engine: self.engines.get(call.engine) for call in self.calls_of(program_id)}

    def in_engine(self, call: GatewayCall) -> CallSnapshot | None:
        """Return the call's entry in its engine's last snapshot."""
        return self._in_engines.get(call.engine_key, _ABSENT)[0]

    def rank_of(self, call: GatewayCall) -> EngineSnapshot | None:
        """Return the snapshot of the call's data-parallel rank."""
        return self._in_engines.get(call.engine_key, _ABSENT)[1]

    def why_queued(self, call: GatewayCall) -> str | None:
        """Return why a call waits at the gateway; None once it was sent."""
        engine = self.engines.get(call.engine)
        return None if engine is None else engine.why_queued(call.start.key)

    def call_state(self, call: GatewayCall) -> OpenCallState:
        """Return where an open call is."""
        if self.why_queued(call) is not None:
            return OpenCallState.QUEUED
        entry, engine = self.in_engine(call), self.engines.get(call.engine)
        if entry is not None:
            return OpenCallState.RUNNING if entry.is_running else OpenCallState.WAITING
        # A snapshot leaves out only calls at the end of the queue.
        is_cut_off = engine is not None and engine.snapshot is not None and engine.snapshot.left_out > 0
        return OpenCallState.WAITING if is_cut_off else OpenCallState.SENT

    def program_state(self, view: ProgramView) -> ProgramState:
        """Return what a program is doing; calls that only another gateway knows count as running."""
        if not view.active_calls:
            return ProgramState.IDLE
        if view.is_ending:
            return ProgramState.ENDING
        states = set(map(self.call_state, self.calls_of(view.program_id)))
        is_waiting = bool(states) and states <= {OpenCallState.QUEUED, OpenCallState.WAITING}
        return ProgramState.WAITING if is_waiting else ProgramState.RUNNING
