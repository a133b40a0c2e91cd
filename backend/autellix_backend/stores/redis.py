"""The process table of many gateways, in Redis or Valkey: one script per start of a call, one per end.

All gateways are equal. Each holds a lease, which every round of its reaper renews; any other gateway settles
the running calls of one without a lease as `lost`. The scripts add service or keep the greater, by the
policy's rule; everything else about policies happens here. `scripts/common.lua` lists the keys.

Times are converted from the gateway's clock to the table's, by a difference that each round measures. The
table's clock follows Redis's, which may jump, by small steps.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec
from typing_extensions import override

from autellix_backend.core.errors import DuplicateCallError, UnknownCallError
from autellix_backend.core.policies import Policy
from autellix_backend.pauses import Pauses
from autellix_backend.stores.base import (
    MAX_ANSWER_IDS,
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
    StoreUnavailableError,
    call_key,
    program_work,
)
from autellix_backend.stores.listing import ListingPlace
from autellix_backend.stores.memory import HISTORY_CALLS, MAX_FLAGS
from autellix_backend.stores.redis_ends import NO_EVENT, EndStream, decode_end
from autellix_backend.stores.redis_records import (
    KnownProgram,
    decode_source,
    decode_view,
    encode_adoption,
    encode_argument,
    encode_charge,
    encode_origin,
    encode_start,
    merge_rule,
    to_text,
)
from autellix_backend.stores.redis_scripts import RedisScripts
from autellix_backend.stores.table_clock import TableClock

LOST = "lost"
"""The outcome of a call whose gateway is gone."""
MAX_REAPED = 32
"""The most entries of a kind that one script removes, at 80 µs each: Redis does nothing else meanwhile."""
MAX_ENDS = 256
"""The most entries of the stream of ends that are read at once, at 2 µs each."""
MAX_VIEWS = 25
"""The most programs that one script reads; the gateway parses its answer, 2,000 values, in one piece."""
MAX_NAMES = 500
"""The most names that one script passes on its way through the list of programs."""
MAX_PASSES = 20
"""The most such scripts for one page."""
FOREIGN = 2
"""The answer of the script `beat` for a session of another owner."""
EVICTS = (
    "store.url: when the server is full it removes keys of the process table (maxmemory-policy %s), and with "
    "them the service of programs; set it to noeviction"
)

logger = logging.getLogger(__name__)


class RedisStore(ProgramStore):
    """A ProgramStore in Redis; every method may raise StoreUnavailableError."""

    def __init__(
        self,
        policy: Policy,
        scripts: RedisScripts,
        *,
        program_idle_s: float,
        session_ttl_s: float,
        lease_s: float,
        clock: TableClock,
        max_answer_ids: int = MAX_ANSWER_IDS,
    ) -> None:
        self._policy = policy
        self._rule = merge_rule(policy)
        self._scripts = scripts
        self._program_idle_s = program_idle_s
        self._session_ttl_s = session_ttl_s
        self._lease_s = lease_s
        self._max_answer_ids = max_answer_ids
        self.clock = clock
        self._gateway = ""
        self._ends = EndStream()
        self.epoch = ""
        """The table's identity, which changes when its data are lost."""

    @override
    async def open(self) -> None:
        """Join the table under a new id; after an error, take over the calls of the previous id.

        Raises:
            StoreUnavailableError: if the table cannot be reached.
        """
        if self._gateway:
            # Connections from before the error may be open here alone.
            await self._scripts.disconnect()
        sent_s = self.clock.own_now()
        table_s = await self._scripts.run("time")
        self.clock.measured(float(table_s), sent_s, self.clock.own_now())
        gateway = secrets.token_hex(6)
        lease_end_s = self.clock.shared(self.clock.own_now()) + self._lease_s
        names = (self._gateway, gateway, repr(lease_end_s), secrets.token_hex(6))
        answer = await self._scripts.run("join", *names)
        epoch, last_event = (word.decode() for word in answer)
        if epoch != self.epoch:
            self.epoch = epoch
            self._ends.restart(last_event)
            if policy := await self._scripts.eviction():
                logger.warning(EVICTS, policy)
        self._gateway = gateway

    @override
    async def close(self) -> None:
        """Leave the table, unless calls are running, and drop the connection."""
        try:
            if self._gateway:
                await self._scripts.run("leave", self._gateway)
        except StoreUnavailableError:
            # The lease ends by itself.
            pass
        finally:
            await self._scripts.close()

    @override
    def failure(self) -> str | None:
        """Return None: this store raises instead."""
        return None

    @override
    async def begin(self, call: CallStart, now: float) -> Inherited:
        now_s = self.clock.shared(now)
        tools = call.interceptions or None
        start = {
            "program": call.program_id,
            "key": call.key,
            "now": now_s,
            "start": encode_start(call, now_s),
            "flags": call.flags,
            "most_flags": MAX_FLAGS,
            "session": call.session_id,
            "name": call.name or None,
            "group": call.hints.group or None,
            "class_id": call.class_id,
            "owner": call.owner,
            "interceptions": tools and to_text(tools),
            "intercepted_s": tools and sum(seconds for _, seconds in tools),
            "parents": call.parents if self._policy.reads_parents else None,
            "is_identified": call.is_identified,
            "adopts": call.adopts and encode_adoption(call.adopts, call.program_id, self._rule),
        }
        answer = await self._scripts.run("begin", self._gateway, encode_argument(start))
        if answer == 0:
            raise DuplicateCallError(call.key)
        if answer == 1:
            raise NotOwnerError(call.program_id)
        values, ends, has_emptied = answer
        return self._inherited(call, now_s, KnownProgram(*values), ends, has_emptied=bool(has_emptied))

    def _inherited(
        self, call: CallStart, now_s: float, known: KnownProgram, ends: Sequence[bytes], *, has_emptied: bool
    ) -> Inherited:
        service_s = float(known.service_s or 0)
        parent_ends_s: list[float] | None = None
        if call.parents is not None and self._policy.reads_parents and all(ends):
            parent_ends_s = [float(end) for end in ends]
        counts = (known.prompt_tokens, known.cached_tokens, known.output_tokens)
        prompt_tokens, cached_tokens, output_tokens = (int(count or 0) for count in counts)
        return Inherited(
            service_s=self._policy.inherit(service_s, parent_ends_s),
            program_service_s=service_s,
            wait_s=float(known.wait_s or 0),
            finished_calls=int(known.finished_calls or 0),
            work=program_work(prompt_tokens, cached_tokens, output_tokens),
            tokens=prompt_tokens + output_tokens,
            age_s=max(0.0, now_s - float(known.created_s or now_s)),
            has_emptied=has_emptied,
        )

    @override
    async def settle(self, end: CallEnd, now: float) -> None:
        if not await self._settle(end, now, owner=self._gateway):
            raise UnknownCallError(end.key)

    @override
    async def open_session(self, session_id: str, now: float, owner: str | None = None) -> bool:
        return not await self._beat(session_id, now, "open", owner)

    @override
    async def session_owner(self, session_id: str) -> str | None:
        owner = await self._scripts.run("owner", self._gateway, session_id)
        return None if owner is None else str(owner.decode())

    @override
    async def heartbeat(self, session_id: str, now: float) -> bool:
        return await self._beat(session_id, now, "refresh")

    @override
    async def close_session(self, session_id: str, now: float) -> bool:
        """End a session and the programs that it alone keeps, some at a time."""
        was_there, taken, step = False, MAX_REAPED, "first"
        while taken == MAX_REAPED:
            answer = await self._scripts.run("close", self._gateway, session_id, MAX_REAPED, step)
            is_known, taken, gone = answer
            await self._publish(gone)
            was_there |= bool(is_known)
            step = "more"
        return was_there

    @override
    async def end_program(self, program_id: str, now: float) -> bool:
        was_there, gone = await self._scripts.run("end", self._gateway, program_id)
        self._ends.on_answer(gone)
        return bool(was_there)

    @override
    async def reap(self, now: float) -> Reaped:
        """Remove stale entries, settle lost calls, renew the lease, and learn of ends at other gateways."""
        programs: list[str] = []
        sessions: list[str] = []
        is_full = True
        while is_full:
            round_programs, round_sessions, is_full = await self._reap_some(now)
            programs += round_programs
            sessions += round_sessions
        pauses = Pauses()
        async for event in self._ends_from(self._ends.last_event, "+"):
            self._ends.on_news((event,))
            await pauses.pause()
        return Reaped(programs=tuple(programs), sessions=tuple(sessions))

    @override
    async def keep_answer(self, tenant: str, ids: Sequence[str], source: AnswerSource, now: float) -> None:
        engine = encode_origin(source)
        names = {"program": source.program_id, "engine": engine, "most": self._max_answer_ids}
        argument = encode_argument({**self._answer_ids(tenant, ids, now), **names})
        await self._scripts.run("keep_answer", self._gateway, argument)

    @override
    async def find_answer(self, tenant: str, ids: Sequence[str], now: float) -> AnswerSource | None:
        argument = encode_argument(self._answer_ids(tenant, ids, now))
        found = await self._scripts.run("find_answer", self._gateway, argument)
        return decode_source(found) if found else None

    @override
    async def find_calls(self, tenant: str, call_ids: Sequence[str], now: float) -> dict[str, AnswerSource]:
        if not call_ids:
            return {}
        argument = encode_argument(self._answer_ids(tenant, [call_key(each) for each in call_ids], now))
        found = await self._scripts.run("find_calls", self._gateway, argument)
        return {call: decode_source(each) for call, each in zip(call_ids, found, strict=True) if each}

    def _answer_ids(self, tenant: str, ids: Sequence[str], now: float) -> dict[str, object]:
        now_s = self.clock.shared(now)
        return {
            "tenant": tenant,
            "ids": ids,
            "now": now_s,
            "oldest": now_s - self._program_idle_s,
            "keep_s": math.ceil(self._program_idle_s),
        }

    @override
    async def program(self, program_id: str) -> ProgramView | None:
        views = await self._views([program_id], has_calls=True)
        return views[0] if views else None

    @override
    async def page(
        self, *, prefix: str = "", is_active: bool | None = None, after: str | None = None, limit: int
    ) -> ProgramPage:
        place: ListingPlace | None = ListingPlace.read(after, is_active=is_active)
        found: list[tuple[ListingPlace, str]] = []
        passes = 0
        # One more than is shown, to know whether any follow.
        while place is not None and len(found) <= limit and passes < MAX_PASSES:
            names, place = await self._names(place, prefix, is_active=is_active)
            found += names
            passes += 1
        if len(found) > limit:
            found = found[:limit]
            place = found[-1][0]
        views: list[ProgramView] = []
        for first in range(0, len(found), MAX_VIEWS):
            some = [name for _, name in found[first : first + MAX_VIEWS]]
            views += await self._views(some, has_calls=False)
        return ProgramPage(programs=views, cursor=None if place is None else place.cursor)

    async def _names(
        self, place: ListingPlace, prefix: str, *, is_active: bool | None
    ) -> tuple[list[tuple[ListingPlace, str]], ListingPlace | None]:
        """Return the next names behind a place, and the place behind which to go on; None at the end."""
        kind = "idle" if place.is_idle else "active"
        last, names = await self._scripts.run("page", self._gateway, kind, place.number, MAX_NAMES, prefix)
        found = [
            (ListingPlace(place.is_idle, int(number)), name.decode())
            for name, number in zip(names[::2], names[1::2], strict=True)
        ]
        if last:
            return found, ListingPlace(place.is_idle, int(last))
        is_over = place.is_idle or is_active is True
        return found, None if is_over else ListingPlace(is_idle=True, number=0)

    @override
    async def counts(self) -> Counts:
        programs, sessions, active_calls, active = await self._scripts.run("counts", self._gateway)
        return Counts(programs=programs, sessions=sessions, active_calls=active_calls, active_programs=active)

    @override
    async def spend(self, day: int, tokens: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        used = msgspec.json.encode([(tenant, *numbers) for tenant, numbers in tokens.items()])
        totals = await self._scripts.run("spend", self._gateway, day, used)
        return dict(zip(tokens, totals, strict=True))

    @override
    async def recent_ends(self) -> list[ProgramEnd]:
        """Return the latest programs that ended before this gateway joined, oldest first."""
        return [decode_end(*values) async for _, values in self._ends_from(NO_EVENT, self._ends.last_event)]

    @override
    def subscribe(self, on_end: Callable[[ProgramEnd], None]) -> None:
        """Publish the ends of programs, whichever gateway ended them."""
        self._ends.subscribe(on_end)

    async def _settle(self, end: CallEnd, now: float, *, owner: str) -> bool:
        """Settle a call of this gateway or of a lost one; return whether it was running."""
        ending = {
            **encode_charge(self._policy, end),
            "program": end.program_id,
            "now": self.clock.shared(now),
            "entry": to_text(end),
            "most_entries": HISTORY_CALLS,
            "rule": self._rule,
            "is_final": end.is_final,
        }
        answer = await self._scripts.run("settle", self._gateway, owner, msgspec.json.encode(ending))
        if answer == 0:
            return False
        self._ends.on_answer(answer)
        return True

    async def _beat(self, session_id: str, now: float, manner: str, owner: str | None = None) -> bool:
        time = repr(self.clock.shared(now))
        answer = await self._scripts.run("beat", self._gateway, session_id, time, manner, owner or "")
        if answer == FOREIGN:
            raise NotOwnerError(session_id)
        return bool(answer)

    async def _reap_some(self, now: float) -> tuple[list[str], list[str], bool]:
        now_s, sent_s = self.clock.shared(now), self.clock.own_now()
        answer = await self._scripts.run(
            "reap",
            self._gateway,
            *(repr(now_s), repr(now_s + self._lease_s)),
            *(repr(now_s - self._session_ttl_s), repr(now_s - self._program_idle_s)),
            MAX_REAPED,
        )
        table_s, taken, sessions, ended, idle, gone, lost = answer
        self.clock.measured(float(table_s), sent_s, self.clock.own_now())
        await self._publish(gone)
        for gateway, key, program_id in lost:
            await self._settle(lost_end(key.decode(), program_id.decode()), now, owner=gateway.decode())
        is_full = max(taken, len(idle), len(lost)) >= MAX_REAPED
        return [name.decode() for name in (*ended, *idle)], [name.decode() for name in sessions], is_full

    async def _ends_from(self, after: str, last: str) -> AsyncIterator[tuple[bytes, list[bytes]]]:
        """Iterate over the stream of ends behind an entry, up to a last one."""
        is_full = True
        while is_full:
            events = await self._scripts.ends(after, last, MAX_ENDS)
            for event in events:
                yield event
            is_full = len(events) == MAX_ENDS
            after = events[-1][0].decode() if events else after

    async def _publish(self, gone: Sequence[Sequence[bytes]]) -> None:
        pauses = Pauses()
        for end in gone:
            self._ends.on_answer((end,))
            await pauses.pause()

    async def _views(self, program_ids: Sequence[str], *, has_calls: bool) -> list[ProgramView]:
        history = "with" if has_calls else "without"
        records = await self._scripts.run("views", self._gateway, history, *program_ids)
        views: list[ProgramView] = []
        pauses = Pauses()
        for program_id, record in zip(program_ids, records, strict=True):
            if record:
                views.append(decode_view(program_id, record, self.clock.own, has_calls=has_calls))
                await pauses.pause()
        return views


def lost_end(key: str, program_id: str) -> CallEnd:
    """Return the end of a call that costs its program nothing."""
    return CallEnd(
        key=key,
        program_id=program_id,
        outcome=LOST,
        services_s=(),
        wait_s=0.0,
        table_wait_s=0.0,
        inherited_service_s=0.0,
        is_estimated=True,
    )
