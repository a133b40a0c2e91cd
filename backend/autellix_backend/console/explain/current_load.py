"""The load at a moment: what programs wait for, and what the engines hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autellix_backend.console.explain.overview import CallPlace, Overview
from autellix_backend.console.explain.recent_load import Moment
from autellix_backend.gateway.engines.kv_memory import KvMemory, kv_memory, sum_of
from autellix_backend.observe.states import WAITING, ProgramState
from autellix_backend.pauses import Pauses
from autellix_backend.stores.base import ProgramStore

SHOWN_STATES = (ProgramState.WAITING_FOR_MEMORY, ProgramState.WAITING_FOR_SLOT, ProgramState.IN_ENGINE)
"""The states that this gateway and the engines' snapshots show; the others follow from the process table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCount:
    """The programs in one state."""

    state: str
    programs: int
    longest_wait_s: float | None
    """The longest present wait of a call among them; None where none waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentLoad:
    """The load at this moment, of all gateways as far as it is known; unknown values are None."""

    programs: int
    states: tuple[StateCount, ...]
    engines: int
    engines_up: int
    slots: int | None
    """Batch slots of the engines that report them, and the calls that run and wait there."""
    running: int | None
    waiting: int | None
    kv: KvMemory | None


async def current_load(store: ProgramStore, overview: Overview) -> CurrentLoad:
    """Return the load at this moment."""
    counts = await store.counts()
    places: list[CallPlace] = []
    pauses = Pauses()
    for place in overview.open_places():
        places.append(place)
        await pauses.pause()
    elsewhere = max(0, counts.active_programs - len(places))
    between_calls = max(0, counts.programs - len(places) - elsewhere)
    states = [_count_of(state, places) for state in SHOWN_STATES]
    for state, programs in (
        (ProgramState.AT_ANOTHER_GATEWAY, elsewhere),
        (ProgramState.BETWEEN_CALLS, between_calls),
    ):
        states.append(StateCount(state=state, programs=programs, longest_wait_s=None))
    views = list(overview.engines.values())
    snapshots = [view.snapshot for view in views if view.snapshot is not None]
    return CurrentLoad(
        programs=len(places) + elsewhere + between_calls,
        states=tuple(states),
        engines=len(views),
        engines_up=sum(view.failure is None for view in views),
        slots=sum(each.slots for each in snapshots) if snapshots else None,
        running=sum(each.running for each in snapshots) if snapshots else None,
        waiting=sum(each.waiting for each in snapshots) if snapshots else None,
        kv=sum_of(memory for view in views if (memory := kv_memory(view)) is not None),
    )


def _count_of(state: ProgramState, places: Sequence[CallPlace]) -> StateCount:
    found = [place for place in places if place.state is state]
    longest_s = max((place.state_s for place in found), default=None) if state in WAITING else None
    return StateCount(state=state, programs=len(found), longest_wait_s=longest_s)


def moment_of(load: CurrentLoad) -> Moment:
    """Return what a sample keeps of the load at a moment."""
    programs = {each.state: float(each.programs) for each in load.states}
    kv = load.kv
    total = math.nan if kv is None or not kv.total_tokens else kv.total_tokens
    return Moment(
        **programs,
        kv_held=(kv.held_tokens if kv else 0) / total,
        kv_kept=(kv.kept_tokens if kv else 0) / total,
        kv_reserve=(kv.reserve_tokens if kv else 0) / total,
    )
