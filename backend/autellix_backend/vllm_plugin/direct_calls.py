"""The calls that reach an engine without a gateway: their identity, and what the engine's scheduler learns.

Identity is read as by the gateway. The engine itself keeps the service of programs, so none is charged here:
the store keeps only which programs are live, whose sessions they are of, and whose answers have which ids.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.policies import make_policy
from autellix_backend.identity.aliases import FOREIGN_TOKEN
from autellix_backend.identity.answer_ids import MAX_IDS, read_answer_ids
from autellix_backend.identity.classes import ProgramClasses, class_id
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.identity.fields import XARGS, asks_for_beams, offers_tools, read_xargs, split_fields
from autellix_backend.identity.identity import Identity, IdentityResolver, read_identity
from autellix_backend.identity.program_class import program_class
from autellix_backend.reports.call_arguments import CallIdentity, call_arguments
from autellix_backend.reports.ended import EndedPrograms
from autellix_backend.reports.request_ids import marked_id
from autellix_backend.stores.base import CallEnd, CallStart, ProgramEnd, call_key
from autellix_backend.stores.memory import MemoryStore
from autellix_backend.vllm_plugin.tracker import PROGRAM_IDLE_S
from autellix_wire.engine_args import PREFIX

HEARTBEAT_S = 10.0
"""The heartbeat period that clients are asked to keep."""
SESSION_TTL_S = 3 * HEARTBEAT_S
REAP_PERIOD_S = 1.0
_NO_TENANT = ""


@dataclass(slots=True, eq=False, kw_only=True)
class DirectCall:
    """One call on its way through vLLM's server."""

    identity: Identity
    start: CallStart
    offers_tools: bool
    body: bytes
    """For vLLM: the client's, with the arguments for the scheduler."""
    request_id: str | None
    """The id that vLLM has to use for it, if any."""
    ended: tuple[str, ...]
    """The ends of other programs that go with it."""
    is_accepted: bool = False
    """Whether vLLM answers it without an error."""
    tool_calls: list[str] = field(default_factory=list)
    """The unique ids of the tool calls in its answer."""
    calls_tools: bool = False


class DirectCalls:
    """The calls of one process of vLLM's server."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Know no call; `clock` is in monotonic seconds."""
        self._clock = clock
        # The policy charges service, and here is none.
        self.store = MemoryStore(
            make_policy("plas"), program_idle_s=PROGRAM_IDLE_S, session_ttl_s=SESSION_TTL_S
        )
        self._resolver = IdentityResolver(self.store, clock=clock, idle_s=PROGRAM_IDLE_S)
        self._classes = ProgramClasses()
        self._ended = EndedPrograms()
        self.store.subscribe(self._on_program_ended)
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._next_reap_s = 0.0
        self._has_peers = False

    def note_peers(self) -> None:
        """Note that other processes of the server answer calls of the same programs, and share nothing.

        So only what is certain without them counts: names, unique ids, and ends that a client states.
        """
        self._has_peers = True
        self._resolver.trusts_transcripts = False

    async def identify(self, headers: Mapping[str, str], data: bytes) -> DirectCall:
        """Read a call, of which nothing is remembered yet; `headers` has lower-case names.

        Raises:
            ValueError: one of `JSON_ERRORS`, if the body, or its `vllm_xargs`, is not a JSON object of UTF-8.
        """
        await self._reap()
        fields = split_fields(data)
        if not data.isascii():
            # Values stay undecoded, and vLLM's complaint should be about the body as it came.
            for raw in fields.values():
                str(raw, "utf-8")
        xargs = {name: raw for name, raw in read_xargs(fields).items() if not name.startswith(PREFIX)}
        number = next(self._numbers)
        try:
            named = read_identity(headers, fields, f"call-{self._prefix}-{number}")
        except InvalidIdentityError:
            # A fault of its client, for which a gateway refuses the call: here nothing identifies it.
            named = read_identity({}, {}, f"call-{self._prefix}-{number}")
        has_tools = offers_tools(fields)
        identity = await self._resolver.resolve(named, fields, _NO_TENANT, offers_tools=has_tools)
        start = CallStart(
            key=f"{self._prefix}-{number}",
            call_id=identity.call,
            program_id=identity.program,
            thread_id=identity.thread,
            parents=identity.parents,
            # Its heartbeats and its end may reach another process.
            session_id=None if self._has_peers else identity.session,
            name=identity.name,
            hints=identity.hints,
            class_id=self._new_class(identity, fields, has_tools=has_tools),
            adopts=identity.adopts,
            is_identified=identity.is_identified,
        )
        ended = self._ended.on_sent(identity.program)
        args = call_arguments(self._for_engine(start, identity, ended, has_tools=has_tools))
        body: dict[str, Any] = {**fields, XARGS: {**xargs, **args}}
        return DirectCall(
            identity=identity,
            start=start,
            offers_tools=has_tools,
            body=msgspec.json.encode(body),
            request_id=marked_id(args) if asks_for_beams(fields) else None,
            ended=ended,
        )

    async def accept(self, call: DirectCall) -> None:
        """Remember a call that vLLM answers: a refused one leaves no trace."""
        call.is_accepted = True
        start, now = call.start, self._clock()
        if start.session_id is not None:
            await self.store.open_session(start.session_id, now)
        inherited = await self.store.begin(start, now)
        if inherited.has_emptied and start.adopts is not None:
            await self.store.end_program(start.adopts.program_id, now)
        self._classes.on_call_begun(start, offers_tools=call.offers_tools)
        self._resolver.remember(call.identity, _NO_TENANT)
        self._ended.on_received(call.ended)
        if call.identity.implicit is not None:
            await self._keep(call, (call_key(call.identity.call),))

    async def note_answer(self, call: DirectCall, content: bytes) -> None:
        """Remember the ids in a whole answer, or in an event of a stream, before its client has them."""
        response_id, tool_calls, tools = read_answer_ids(content)
        call.tool_calls += tool_calls[: MAX_IDS - len(call.tool_calls)]
        if tools and not call.calls_tools:
            call.calls_tools = True
            if call.identity.implicit is not None:
                tool_calls = (*tool_calls, call_key(call.identity.call))
        ids = tool_calls if response_id is None else (response_id, *tool_calls)
        if ids and call.identity.source != FOREIGN_TOKEN:
            await self._keep(call, ids)

    async def close(self, call: DirectCall) -> None:
        """Note that a call has ended, however."""
        program_id, identity = call.start.program_id, call.identity
        if not call.is_accepted:
            if await self.store.program(program_id) is None:
                self._ended.on_last_received(program_id)
            return
        if identity.is_last(offers_tools=call.offers_tools):
            self._ended.on_last_received(program_id)
        end = CallEnd(
            key=call.start.key,
            program_id=program_id,
            outcome="ok",
            services_s=(0.0,),
            wait_s=0.0,
            table_wait_s=0.0,
            inherited_service_s=0.0,
            is_estimated=True,
            is_final=identity.ends_program(
                offers_tools=call.offers_tools, has_tool_calls=bool(call.tool_calls)
            ),
        )
        await self.store.settle(end, self._clock())

    async def heartbeat(self, session_id: str) -> None:
        """Keep a session alive, if one of its calls was accepted."""
        await self.store.heartbeat(session_id, self._clock())

    async def end_session(self, session_id: str) -> bool:
        """End a session and the programs that no other session keeps; return False if there was nothing."""
        return await self.store.close_session(session_id, self._clock())

    async def end_program(self, program_id: str) -> bool:
        """End a program, at once or with its last call under way; return False if there is none."""
        return await self.store.end_program(program_id, self._clock())

    def _for_engine(
        self, start: CallStart, identity: Identity, ended: tuple[str, ...], *, has_tools: bool
    ) -> CallIdentity:
        """Return what the engine's scheduler learns: without totals, which it keeps itself."""
        class_name = start.class_id or self._classes.of(identity.program)
        arrival = Arrival(
            start.key,
            # The program of its process mixes strangers; this is the one it has if a later call continues it.
            identity.call if identity.is_alone else identity.program,
            is_identified=identity.is_identified,
            thread_id=identity.thread,
            parents=identity.parents,
            hints=replace(identity.hints, class_name=class_name),
        )
        is_last = identity.is_last(offers_tools=has_tools)
        return CallIdentity(call_id=identity.call, arrival=arrival, is_last=is_last, ended=ended)

    def _new_class(
        self, identity: Identity, fields: Mapping[str, msgspec.Raw], *, has_tools: bool
    ) -> str | None:
        """Return the class that a call gives its program, None if that has one."""
        if not self._classes.is_open(identity.program, offers_tools=has_tools):
            return None
        return class_id(_NO_TENANT, program_class(identity.name, fields))

    async def _keep(self, call: DirectCall, ids: tuple[str, ...]) -> None:
        source = call.identity.answer_source("", calls_tools=call.calls_tools)
        await self.store.keep_answer(_NO_TENANT, ids, source, self._clock())

    async def _reap(self) -> None:
        now = self._clock()
        if now >= self._next_reap_s:
            self._next_reap_s = now + REAP_PERIOD_S
            self._resolver.expire(now)
            reaped = await self.store.reap(now)
            if self._has_peers:
                # They may go on in another process.
                self._ended.on_received(reaped.programs)

    def _on_program_ended(self, end: ProgramEnd) -> None:
        self._classes.on_program_ended(end)
        self._ended.on_program_ended(end.program_id)
