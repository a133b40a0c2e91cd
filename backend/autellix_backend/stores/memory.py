"""The store of a single gateway: programs, running calls and sessions in this process's memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace
from typing_extensions import override

from autellix_backend.core.errors import UnknownCallError
from autellix_backend.core.policies import Policy
from autellix_backend.core.recent import RecentMap
from autellix_backend.core.table import ProcessTable, Program
from autellix_backend.pauses import Pauses
from autellix_backend.stores.base import (
    MAX_ANSWER_IDS,
    Adoption,
    AnswerSource,
    CallEnd,
    CallStart,
    Counts,
    Inherited,
    NotOwnerError,
    ProgramEnd,
    ProgramPage,
    ProgramStore,
    ProgramView,
    Reaped,
    StoredCall,
    adopted_call,
    call_key,
)
from autellix_backend.stores.ends import EndFeed
from autellix_backend.stores.listing import ListingPlace

MAX_FLAGS = 8
HISTORY_CALLS = 512
"""Finished calls that a program's history keeps."""
MAX_ADOPTION_CALLS = 128
"""The latest of them among which a call to adopt is looked for."""


@dataclass(slots=True)
class _Entry:
    """A program's data beyond its entry in the process table."""

    view: ProgramView
    """The view of the entry, without the values that the process table has."""
    number: int
    """The number of its arrival."""
    running: dict[str, StoredCall] = field(default_factory=dict)
    history: deque[StoredCall] = field(default_factory=lambda: deque(maxlen=HISTORY_CALLS))
    is_identified: bool = True
    """Whether its latest call was."""


class MemoryStore(EndFeed, ProgramStore):
    """A ProgramStore over `core.table`; no method awaits anything, so each is atomic."""

    def __init__(
        self,
        policy: Policy,
        *,
        program_idle_s: float,
        session_ttl_s: float,
        max_answer_ids: int = MAX_ANSWER_IDS,
    ) -> None:
        super().__init__()
        self._policy = policy
        self._program_idle_s = program_idle_s
        self._session_ttl_s = session_ttl_s
        self._table = ProcessTable()
        # In order of arrival.
        self._entries: dict[str, _Entry] = {}
        self._arrivals = 0
        self._active_calls = self._active_programs = 0
        # The last heartbeat of each session, the earliest first.
        self._heartbeats: dict[str, float] = {}
        self._owners: dict[str, str] = {}
        self._programs_of: dict[str, dict[str, None]] = {}
        # None for an id of two programs.
        self._answers: RecentMap[str, AnswerSource | None] = RecentMap(
            ttl_s=program_idle_s, max_entries=max_answer_ids
        )

    @override
    async def open(self) -> None:
        """Do nothing."""

    @override
    async def close(self) -> None:
        """Do nothing."""

    @override
    def failure(self) -> str | None:
        """Return None: this process's memory is always there."""
        return None

    @override
    async def begin(self, call: CallStart, now: float) -> Inherited:
        entry = self._entries.get(call.program_id)
        if entry is not None and call.owner is not None and (entry.view.owner or call.owner) != call.owner:
            raise NotOwnerError(call.program_id)
        program = self._table.begin(call.program_id, call.key, now, thread_id=call.thread_id)
        if entry is None:
            view = ProgramView(program_id=call.program_id, first_arrival_s=now, last_event_s=now)
            self._arrivals += 1
            entry = self._entries[call.program_id] = _Entry(view, self._arrivals)
        has_emptied = call.adopts is not None and self._adopt(call.adopts, call.program_id)
        self._active_calls += 1
        self._active_programs += not entry.running
        entry.running[call.key] = StoredCall(start=call, start_s=now)
        entry.is_identified = call.is_identified
        parent_ends_s = self._table.parent_ends_s(call.program_id, call.parents)
        service_s = self._policy.inherit(program.service_s, parent_ends_s)
        self._note_start(entry.view, call)
        return Inherited(
            service_s=service_s,
            program_service_s=program.service_s,
            wait_s=program.wait_s,
            finished_calls=entry.view.finished_calls,
            work=program.work,
            age_s=now - entry.view.first_arrival_s,
            has_emptied=has_emptied,
        )

    def _adopt(self, adoption: Adoption, program_id: str) -> bool:
        """Move a finished call, each attempt of it, to another program; return whether it was the last."""
        left, found = self._entries.get(adoption.program_id), self._entries[program_id]
        if left is None or left is found:
            return False
        latest = islice(reversed(left.history), MAX_ADOPTION_CALLS)
        for stored in [each for each in latest if each.start.call_id == adoption.call_id]:
            left.history.remove(stored)
            found.history.appendleft(adopted_call(stored, program_id))
            found.view.first_arrival_s = min(found.view.first_arrival_s, stored.start_s)
            end = stored.end
            assert end is not None, "a call in the history has ended"
            for view, sign in ((left.view, -1), (found.view, 1)):
                view.finished_calls += sign
                view.total_service_s = max(0.0, view.total_service_s + sign * end.service_s)
                view.prompt_tokens += sign * (end.prompt_tokens or 0)
                view.cached_tokens += sign * (end.cached_tokens or 0)
                view.output_tokens += sign * (end.output_tokens or 0)
            self._table.move(
                adoption.program_id,
                program_id,
                policy=self._policy,
                path_id=adoption.call_id,
                services_s=end.services_s or (0.0,),
                wait_s=end.table_wait_s,
                work=end.work,
            )
        return not left.view.finished_calls and not left.running

    def _note_start(self, view: ProgramView, call: CallStart) -> None:
        view.name = view.name or call.name
        view.group = view.group or call.hints.group or None
        view.owner = view.owner or call.owner
        if view.class_id is None:
            view.class_id = call.class_id
        if call.flags:
            new_flags = call.flags[: MAX_FLAGS - len(view.flags)]
            view.flags = tuple(dict.fromkeys((*view.flags, *new_flags)))
        if call.interceptions:
            view.intercepted_s += sum(seconds for _, seconds in call.interceptions)
            view.last_interceptions = call.interceptions
        if call.session_id is not None and call.session_id not in view.session_ids:
            view.session_ids += (call.session_id,)
            self._programs_of.setdefault(call.session_id, {})[call.program_id] = None

    @override
    async def settle(self, end: CallEnd, now: float) -> None:
        entry = self._entries.get(end.program_id)
        running = entry.running.pop(end.key, None) if entry is not None else None
        if entry is None or running is None:
            raise UnknownCallError(end.key)
        service_s, work = end.service_s, end.work
        self._active_calls -= 1
        self._active_programs -= not entry.running
        entry.history.append(replace(running, end=end, finish_s=now))
        view = entry.view
        view.finished_calls += 1
        view.total_service_s += service_s
        view.prompt_tokens += end.prompt_tokens or 0
        view.cached_tokens += end.cached_tokens or 0
        view.output_tokens += end.output_tokens or 0
        if end.is_final:
            self._table.end(end.program_id)
        self._charge(end, work, running.start.call_id, now)
        self._drop_if_gone(end.program_id)

    def _charge(self, end: CallEnd, work: float, call_id: str, now: float) -> None:
        program = self._table.get(end.program_id)
        assert program is not None
        *others, last = end.services_s or (0.0,)
        for service_s in others:
            program.service_s = self._policy.complete(program.service_s, end.inherited_service_s, service_s)
        self._table.complete(
            end.program_id,
            end.key,
            now,
            policy=self._policy,
            inherited_service_s=end.inherited_service_s,
            service_s=last,
            wait_s=end.table_wait_s,
            work=work,
            path_id=call_id,
        )

    @override
    async def open_session(self, session_id: str, now: float, owner: str | None = None) -> bool:
        if owner is not None and self._owners.setdefault(session_id, owner) != owner:
            raise NotOwnerError(session_id)
        is_new = session_id not in self._heartbeats
        self._beat(session_id, now)
        return is_new

    @override
    async def session_owner(self, session_id: str) -> str | None:
        return self._owners.get(session_id, "") if session_id in self._heartbeats else None

    @override
    async def heartbeat(self, session_id: str, now: float) -> bool:
        if session_id not in self._heartbeats:
            return False
        self._beat(session_id, now)
        return True

    def _beat(self, session_id: str, now: float) -> None:
        # Moved to the end.
        self._heartbeats.pop(session_id, None)
        self._heartbeats[session_id] = now

    @override
    async def close_session(self, session_id: str, now: float) -> bool:
        return (await self._close(session_id))[0]

    @override
    async def end_program(self, program_id: str, now: float) -> bool:
        return self._end(program_id)

    async def end_all(self) -> None:
        """End all programs, at once or with their last running calls."""
        pauses = Pauses()
        for program_id in list(self._entries):
            self._end(program_id)
            await pauses.pause()

    @override
    async def reap(self, now: float) -> Reaped:
        self._answers.expire(now)
        last_heartbeat_s = now - self._session_ttl_s
        programs: list[str] = []
        sessions: list[str] = []
        # Others may have beaten, or new ones started, while the programs of one were ended.
        while (oldest := next(iter(self._heartbeats.items()), None)) and oldest[1] <= last_heartbeat_s:
            programs += (await self._close(oldest[0]))[1]
            sessions.append(oldest[0])
        pauses = Pauses()
        while idle := self._table.expire(now, self._program_idle_s, limit=1):
            for program_id in idle:
                self._drop_if_gone(program_id)
            programs += idle
            await pauses.pause()
        return Reaped(programs=tuple(programs), sessions=tuple(sessions))

    @override
    async def keep_answer(self, tenant: str, ids: Sequence[str], source: AnswerSource, now: float) -> None:
        self._answers.expire_of(tenant, now)
        for answer_id in ids:
            is_known = self._answers.has(tenant, answer_id)
            known = self._answers.use(tenant, answer_id, now) if is_known else source
            is_shared = known is None or known.program_id != source.program_id
            self._answers.put(tenant, answer_id, None if is_shared else source, now)

    @override
    async def find_answer(self, tenant: str, ids: Sequence[str], now: float) -> AnswerSource | None:
        self._answers.expire_of(tenant, now)
        found = next((each for each in ids if self._answers.has(tenant, each)), None)
        return None if found is None else self._answers.use(tenant, found, now)

    @override
    async def find_calls(self, tenant: str, call_ids: Sequence[str], now: float) -> dict[str, AnswerSource]:
        found = {each: await self.find_answer(tenant, (call_key(each),), now) for each in call_ids}
        return {call_id: source for call_id, source in found.items() if source is not None}

    @override
    async def program(self, program_id: str) -> ProgramView | None:
        program = self._table.get(program_id)
        if program is None:
            return None
        entry = self._entries[program_id]
        return _view(program, entry, (*entry.history, *entry.running.values()))

    @override
    async def page(
        self, *, prefix: str = "", is_active: bool | None = None, after: str | None = None, limit: int
    ) -> ProgramPage:
        last = ListingPlace.read(after, is_active=is_active)
        listed = (
            (ListingPlace(is_idle, entry.number), program_id)
            for is_idle in (False, True)
            if is_active is not is_idle and is_idle >= last.is_idle
            for program_id, entry in self._entries.items()
            if entry.number > (last.number if is_idle is last.is_idle else 0)
            and is_idle is not bool(entry.running)
            and program_id.startswith(prefix)
        )
        # One more than is shown, to know whether any follow.
        found = list(islice(listed, limit + 1))
        shown = [_view(self._table[program_id], self._entries[program_id]) for _, program_id in found[:limit]]
        return ProgramPage(programs=shown, cursor=found[limit - 1][0].cursor if len(found) > limit else None)

    @override
    async def counts(self) -> Counts:
        return Counts(
            programs=len(self._table),
            sessions=len(self._heartbeats),
            active_calls=self._active_calls,
            active_programs=self._active_programs,
        )

    @override
    async def spend(
        self,
        day: int,
        tokens: Mapping[str, tuple[int, int]],
    ) -> dict[str, int]:
        """Return nothing: no other gateway knows this store."""
        return {}

    @override
    async def recent_ends(self) -> list[ProgramEnd]:
        """Return nothing: no program ended before this store was made."""
        return []

    def check(self) -> None:
        """Assert that the table, the entries and the session index agree."""
        self._table.check()
        rows = {program.program_id: program for program in self._table.programs()}
        assert rows.keys() == self._entries.keys(), (rows.keys(), self._entries.keys())
        assert self._active_calls == sum(len(entry.running) for entry in self._entries.values())
        assert self._active_programs == sum(bool(entry.running) for entry in self._entries.values())
        for program_id, entry in self._entries.items():
            assert rows[program_id].active_calls.keys() == entry.running.keys(), program_id
            assert len(entry.history) <= entry.view.finished_calls, program_id
            for session_id in entry.view.session_ids:
                assert program_id in self._programs_of[session_id], (session_id, program_id)
        for session_id, programs in self._programs_of.items():
            assert programs, session_id
            for program_id in programs:
                assert session_id in self._entries[program_id].view.session_ids, (session_id, program_id)

    async def _close(self, session_id: str) -> tuple[bool, list[str]]:
        was_open = self._heartbeats.pop(session_id, None) is not None
        self._owners.pop(session_id, None)
        programs = list(self._programs_of.get(session_id, ()))
        ended: list[str] = []
        pauses = Pauses()
        for program_id in programs:
            if self._leave(program_id, session_id):
                ended.append(program_id)
            # The end of a program costs its subscribers about 0.1 ms.
            await pauses.pause()
        return was_open or bool(programs), ended

    def _leave(self, program_id: str, session_id: str) -> bool:
        """Take a program out of a session; return whether it ended, as no other session keeps it."""
        if program_id not in self._programs_of.get(session_id, ()):
            # It ended in a pause.
            return False
        self._remove_from_session(program_id, session_id)
        view = self._entries[program_id].view
        view.session_ids = tuple(other for other in view.session_ids if other != session_id)
        return not view.session_ids and self._end(program_id)

    def _remove_from_session(self, program_id: str, session_id: str) -> None:
        programs = self._programs_of[session_id]
        del programs[program_id]
        if not programs:
            del self._programs_of[session_id]

    def _end(self, program_id: str) -> bool:
        if self._table.end(program_id) is None:
            return False
        self._drop_if_gone(program_id)
        return True

    def _drop_if_gone(self, program_id: str) -> None:
        if program_id in self._table:
            return
        entry = self._entries.pop(program_id)
        view = entry.view
        for session_id in view.session_ids:
            self._remove_from_session(program_id, session_id)
        work = view.work if entry.is_identified else 0.0
        self.publish(ProgramEnd(program_id=program_id, class_id=view.class_id, work=work))


def _view(program: Program, entry: _Entry, calls: tuple[StoredCall, ...] = ()) -> ProgramView:
    return replace(
        entry.view,
        service_s=program.service_s,
        wait_s=program.wait_s,
        active_calls=len(entry.running),
        active_threads=len(set(program.active_calls.values())),
        last_event_s=program.last_activity_s,
        is_ending=program.is_ended,
        calls=calls,
    )
