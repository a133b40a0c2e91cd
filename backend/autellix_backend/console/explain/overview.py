"""Where open calls are: at the gateway, or waiting or running in an engine by its last snapshot.

A snapshot is up to a second old. Of the calls that were sent since, those for which it shows a free slot
count as being in the engine, in the order of sending, and the others as waiting.

An engine's snapshot holds the calls of all gateways. What another gateway has and no snapshot shows is there.
The slots of calls that have ended since a snapshot have gone to the next ones that waited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.engines.view import EngineView, engine_view
from autellix_backend.gateway.wiring import Gateway
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.observe.states import WAITING, EnginePhase, ProgramState, state_text
from autellix_backend.reports.snapshot import CallSnapshot, EngineSnapshot
from autellix_backend.stores.base import ProgramView

_ABSENT = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlace:
    """Where an open call is, or the program of some."""

    state: ProgramState
    phase: EnginePhase | None = None
    """What it does in its engine; None if it is not there, or if that is not known."""
    state_s: float
    """How long it has been in this state."""
    wait_s: float
    """All its waiting up to now, at the gateway and in the engine."""
    tools: tuple[str, ...] = ()
    """Tools that the last answer called, of a program between calls."""

    @property
    def text(self) -> str:
        """The state in words, with the phase or the tools."""
        return state_text(self.state, self.phase, self.tools)


class Overview:
    """The open calls and engines at one moment, indexed by program."""

    def __init__(
        self,
        calls: Iterable[GatewayCall],
        engines: Mapping[str, EngineView],
        now: float,
        gateway_id: str = "",
    ) -> None:
        self.engines = engines
        self.now = now
        """The moment, on the store's clock."""
        self._calls: dict[str, list[GatewayCall]] = {}
        self._in_engines: dict[str, tuple[CallSnapshot, EngineSnapshot]] = {}
        self._elsewhere: dict[str, dict[str, CallPlace]] = {}
        """The places of other gateways' calls in engines, by program and call."""
        calls = list(calls)
        own = {call.engine_key: call for call in calls}

        def has_ended(entry: CallSnapshot) -> bool:
            call = own.get(entry.call_id)
            return gateway_of(entry.call_id) == gateway_id if call is None else _has_ended(call)

        for engine in engines.values():
            for snapshot in engine.ranks:
                # In queue order, so the last of a call's parallel choices counts.
                for entry in _present_entries(snapshot, has_ended):
                    self._in_engines[entry.call_id] = entry, snapshot
                    if gateway_of(entry.call_id) not in (None, gateway_id):
                        places = self._elsewhere.setdefault(entry.program_id, {})
                        places[entry.call_id] = _place_in_engine(entry, snapshot, engine.age_s or 0.0)
        self._unseen: dict[str, ProgramState] = {}
        """The states of calls that were sent, and that no snapshot shows."""
        sent: dict[str, list[GatewayCall]] = {}
        for call in calls:
            self._calls.setdefault(call.start.program_id, []).append(call)
            if self.in_engine(call) is None and not self.is_queued(call):
                sent.setdefault(call.engine, []).append(call)
        for name, unseen in sent.items():
            self._unseen.update(_unseen_states(unseen, engines.get(name)))

    def calls_of(self, program_id: str) -> list[GatewayCall]:
        """Return a program's open calls, oldest first."""
        return self._calls.get(program_id, [])

    def engines_of(self, program_id: str) -> dict[str, EngineView | None]:
        """Return the engines of a program's open calls by name; None for one that has left."""
        return {call.engine: self.engines.get(call.engine) for call in self.calls_of(program_id)}

    def in_engine(self, call: GatewayCall) -> CallSnapshot | None:
        """Return the call's entry in its engine's last snapshot; None once the engine reported its end."""
        return None if _has_ended(call) else self._in_engines.get(call.engine_key, _ABSENT)[0]

    def rank_of(self, call: GatewayCall) -> EngineSnapshot | None:
        """Return the snapshot of the call's data-parallel rank."""
        return self._in_engines.get(call.engine_key, _ABSENT)[1]

    def is_queued(self, call: GatewayCall) -> bool:
        """Return whether a call waits at the gateway."""
        engine = self.engines.get(call.engine)
        return engine is not None and engine.is_queued(call.start.key)

    def why_queued(self, call: GatewayCall) -> str | None:
        """Return why a call waits at the gateway; None once it was sent."""
        engine = self.engines.get(call.engine)
        return None if engine is None else engine.why_queued(call.start.key)

    def place_of(self, call: GatewayCall) -> CallPlace:
        """Return where an open call is."""
        engine = self.engines.get(call.engine)
        entry, snapshot = self.in_engine(call), self.rank_of(call)
        if engine is not None and engine.is_queued(call.start.key):
            for_memory = engine.waits_for_memory(call.start.key)
            state = ProgramState.WAITING_FOR_MEMORY if for_memory else ProgramState.WAITING_FOR_SLOT
            state_s = self.now - call.since_s
            return CallPlace(state=state, state_s=state_s, wait_s=call.wait_s + state_s)
        if entry is None or snapshot is None:
            return self._place_unseen(call)
        place = _place_in_engine(entry, snapshot, 0.0 if engine is None else engine.age_s or 0.0)
        return replace(
            place,
            phase=_phase_of(entry, call) if entry.is_running else None,
            wait_s=call.wait_s + place.wait_s,
        )

    def _place_unseen(self, call: GatewayCall) -> CallPlace:
        """Return where a call is that was sent, and that no snapshot shows."""
        state = self._unseen.get(call.start.key, ProgramState.IN_ENGINE)
        state_s = self.now - (call.began_s if call.sent_s is None else call.sent_s)
        waited_s = (
            state_s if state in WAITING else max((report.wait_s for report in call.reports), default=0.0)
        )
        has_begun = state is ProgramState.IN_ENGINE and call.answer.first_bytes_s is not None
        return CallPlace(
            state=state,
            phase=EnginePhase.DECODE if has_begun else None,
            state_s=state_s,
            wait_s=call.wait_s + waited_s,
        )

    def call_state(self, call: GatewayCall) -> ProgramState:
        """Return what an open call is doing."""
        return self.place_of(call).state

    def program_state(self, view: ProgramView) -> ProgramState:
        """Return what a program is doing; `program_place` has more."""
        return self.program_place(view).state

    def program_place(self, view: ProgramView, settled: Sequence[SettledCall] = ()) -> CallPlace:
        """Return what a program is doing: what the call does that is furthest, and the waiting of all.

        Calls of other gateways are where the engines' snapshots show them. `settled` are its calls that this
        gateway settled, the last one last.
        """
        if not view.active_calls:
            return CallPlace(
                state=ProgramState.BETWEEN_CALLS,
                state_s=self.now - view.last_event_s,
                wait_s=0.0,
                tools=settled[-1].asked_tools if settled else (),
            )
        return self._place_of_all(view.program_id) or CallPlace(
            state=ProgramState.AT_ANOTHER_GATEWAY, state_s=self.now - view.last_event_s, wait_s=0.0
        )

    def open_places(self) -> Iterator[CallPlace]:
        """Iterate over what the programs are doing that have open calls here, or shown by a snapshot."""
        for program_id in self._calls.keys() | self._elsewhere.keys():
            place = self._place_of_all(program_id)
            assert place is not None
            yield place

    def place_elsewhere(self, program_id: str, key: str) -> CallPlace | None:
        """Return where another gateway's call is by the engines' snapshots; None if none shows it."""
        return self._elsewhere.get(program_id, {}).get(key)

    def _place_of_all(self, program_id: str) -> CallPlace | None:
        places = list(map(self.place_of, self.calls_of(program_id)))
        places += self._elsewhere.get(program_id, {}).values()
        if len(places) < 2:
            return places[0] if places else None
        states = {place.state for place in places}
        state = next(each for each in _FURTHEST_FIRST if each in states)
        found = [place for place in places if place.state is state]
        phases = {place.phase for place in found}
        return CallPlace(
            state=state,
            phase=next(
                (phase for phase in (EnginePhase.DECODE, EnginePhase.PREFILL) if phase in phases), None
            ),
            state_s=max(place.state_s for place in found),
            wait_s=sum(place.wait_s for place in places),
        )


def overview_of(gateway: Gateway) -> Overview:
    """Return the open calls and engines of a gateway at this moment."""
    engines = {handle.name: engine_view(handle) for handle in gateway.pool}
    return Overview(gateway.registry, engines, gateway.clock(), gateway.registry.gateway_id)


_FURTHEST_FIRST = (ProgramState.IN_ENGINE, ProgramState.WAITING_FOR_SLOT, ProgramState.WAITING_FOR_MEMORY)


def gateway_of(call_key: str) -> str | None:
    """Return the id of the gateway that sent a call to its engine; None for a call that none sent."""
    _, separator, number = call_key.rpartition("~")
    return number.rpartition("-")[0] or None if separator else None


def _present_entries(
    snapshot: EngineSnapshot, has_ended: Callable[[CallSnapshot], bool]
) -> list[CallSnapshot]:
    """Return the calls of a snapshot that have not ended since; the next ones run in the slots of those."""
    # Those of before the snapshot itself may have ended at other gateways.
    inactive, others, is_complete = snapshot.programs
    programs = {*inactive, *others} if is_complete else {entry.program_id for entry in snapshot.calls}
    found = [entry for entry in snapshot.calls if entry.program_id in programs and not has_ended(entry)]
    was_running, is_running = (sum(entry.is_running for entry in each) for each in (snapshot.calls, found))
    freed = min(was_running, snapshot.running) - is_running
    for at, entry in enumerate(found):
        if freed > 0 and not entry.is_running and _state_of(entry, snapshot) is ProgramState.WAITING_FOR_SLOT:
            found[at] = msgspec.structs.replace(entry, is_running=True, since_s=0.0)
            freed -= 1
    return found


def _has_ended(call: GatewayCall) -> bool:
    """Return whether the engine has reported the end of a call whose answer is on its way."""
    return len(call.reports) >= call.request.body.record_count


def _place_in_engine(entry: CallSnapshot, snapshot: EngineSnapshot, age_s: float) -> CallPlace:
    """Return where a call is by a snapshot of this age."""
    phase = EnginePhase.DECODE if entry.is_decoding else EnginePhase.PREFILL
    return CallPlace(
        state=_state_of(entry, snapshot),
        phase=phase if entry.is_running and entry.is_decoding is not None else None,
        state_s=entry.since_s + age_s,
        wait_s=entry.wait_s + (0.0 if entry.is_running else age_s),
    )


def _state_of(entry: CallSnapshot, snapshot: EngineSnapshot) -> ProgramState:
    if entry.is_running:
        return ProgramState.IN_ENGINE
    is_inactive = entry.inactive_place is not None or not entry.is_admitted
    return (
        ProgramState.WAITING_FOR_MEMORY
        if is_inactive or _lacks_blocks(snapshot)
        else ProgramState.WAITING_FOR_SLOT
    )


def _phase_of(entry: CallSnapshot, call: GatewayCall) -> EnginePhase | None:
    """Return what a running call does; an engine of an earlier version does not say so."""
    if entry.is_decoding is None:
        return None if call.answer.first_bytes_s is None else EnginePhase.DECODE
    return EnginePhase.DECODE if entry.is_decoding else EnginePhase.PREFILL


def _lacks_blocks(snapshot: EngineSnapshot) -> bool:
    """Return whether the first waiting calls of an engine find a slot, and no KV blocks."""
    return snapshot.is_block_short and snapshot.running < snapshot.slots


def _unseen_states(calls: list[GatewayCall], engine: EngineView | None) -> Mapping[str, ProgramState]:
    """Return the states of calls that were sent to an engine, and that no snapshot shows."""
    if engine is None:
        return {}
    free, taken_tokens = _free_slots(engine), 0
    states: dict[str, ProgramState] = {}
    for call in sorted(calls, key=_sent_order):
        if _has_ended(call):
            state = ProgramState.IN_ENGINE
        elif call.answer.first_bytes_s is not None:
            state = ProgramState.IN_ENGINE
            free -= 1
        elif _needs_memory(call, engine, taken_tokens):
            state = ProgramState.WAITING_FOR_MEMORY
        else:
            state = ProgramState.IN_ENGINE if free >= 1 else ProgramState.WAITING_FOR_SLOT
            free -= 1
            taken_tokens += call.assigned.prompt_tokens
        states[call.start.key] = state
    return states


def _sent_order(call: GatewayCall) -> tuple[bool, float]:
    """Return the place of a call among those sent: streams that have begun hold slots."""
    return call.answer.first_bytes_s is None, math.inf if call.sent_s is None else call.sent_s


def _free_slots(engine: EngineView) -> float:
    """Return the slots that an engine has beyond those of the calls that its last snapshot shows."""
    snapshot = engine.snapshot
    if engine.failure is not None:
        return 0.0
    if snapshot is None:
        return engine.slots
    inactive = 0 if snapshot.demand is None else snapshot.demand.inactive_calls
    return snapshot.slots - snapshot.running - max(0, snapshot.waiting - inactive)


def _needs_memory(call: GatewayCall, engine: EngineView, taken_tokens: int) -> bool:
    """Return whether a call that was sent to an engine waits there for KV memory, by its last snapshot.

    `taken_tokens` are those of the calls that were sent since, and are active.
    """
    snapshot, memory = engine.snapshot, engine.memory
    if snapshot is None:
        return False
    if _lacks_blocks(snapshot):
        return True
    # Not the balancer's numbers: those count what host memory keeps as present.
    admission, demand = snapshot.admission, snapshot.demand
    if memory is None or admission is None or demand is None:
        return False
    # Of calls for which a snapshot has no room, those of inactive programs come last.
    if snapshot.left_out > demand.inactive_calls:
        return False
    program_id = call.start.program_id
    if program_id in memory.known:
        return program_id in memory.inactive
    needed_tokens = admission.working_set_tokens + taken_tokens + call.assigned.prompt_tokens
    return needed_tokens > admission.capacity_tokens or demand.inactive_calls > 0
