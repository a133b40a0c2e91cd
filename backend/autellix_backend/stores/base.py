"""The interface of stores of programs and sessions, and the records that cross it.

Time is an argument everywhere, on the caller's clock; a store that callers with several clocks share
translates it. Most methods are coroutines, because a store may live on another machine. Each is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from autellix_backend.core.boost import work_of
from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_wire.flags import IMPLICIT

CLASS_SEPARATOR = "/"
"""Between tenant and name in the id of a class; no tenant's name holds it."""
MAX_ANSWER_IDS = 65536
"""Ids of answers that a store keeps: in memory over all tenants, in Redis of each."""


_CALL = "call "
"""Before the id of a call, among ids of answers, which hold no blank."""


class StoreUnavailableError(Exception):
    """The store cannot be reached or did not answer in time; it may have run the operation all the same."""


class NotOwnerError(Exception):
    """The session or the program belongs to another client."""


class CallStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The start of a call; `key` is unique over all calls, `call_id` is the client's and may repeat."""

    key: str
    call_id: str
    program_id: str
    thread_id: str = "0"
    thread_name: str | None = None
    """Its name at the client, such as an agent's; several threads may have one name."""
    parents: tuple[str, ...] | None = None
    session_id: str | None = None
    name: str | None = None
    hints: Hints = NO_HINTS
    """What its client says of its program."""
    flags: tuple[str, ...] = ()
    """Remarks on its identity (`autellix_wire.flags`)."""
    interceptions: tuple[tuple[str, float], ...] = ()
    """Tools that ran at the client since the calls this one depends on: name, seconds."""
    class_id: str | None = None
    """The class of its program, if this call decides it."""
    owner: str | None = None
    """The owner of its program, where identity is strict; the first call with an owner decides."""
    adopts: Adoption | None = None
    """The call before it, if that is to leave another program for this one."""
    is_identified: bool = True
    """Whether anything identifies its program, by its latest call; else it has no size."""


class Inherited(msgspec.Struct, frozen=True, kw_only=True):
    """What a call inherits from its program."""

    service_s: float
    """The service that the policy starts the call with: its program's, or the end of its parents' paths."""
    program_service_s: float
    """The attained service in the program's own entry."""
    wait_s: float
    finished_calls: int = 0
    work: float = 0.0
    """The work of the program's finished calls (see `core.boost`)."""
    tokens: int = 0
    """Their prompt and output tokens, where gateways share the store."""
    age_s: float = 0.0
    """Time since the first call of the program arrived."""
    has_emptied: bool = False
    """Whether the program that a call was adopted from has no call left."""


class CallEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome and the cost of a call."""

    key: str
    program_id: str
    outcome: str
    services_s: tuple[float, ...]
    """The engine's time for each of its requests (one, or one per choice), without inherited service."""
    wait_s: float
    """All its waiting."""
    table_wait_s: float
    """The waiting charged to its program: what was left after anti-starvation resets."""
    inherited_service_s: float
    is_estimated: bool
    level: int | None = None
    preemptions: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in the engine's prefix cache."""
    output_tokens: int | None = None
    is_final: bool = False
    """The program ends with this call."""

    @property
    def service_s(self) -> float:
        """Return the engine's time of all its requests."""
        return sum(self.services_s)

    @property
    def work(self) -> float:
        """Return the work of its tokens."""
        return program_work(self.prompt_tokens or 0, self.cached_tokens or 0, self.output_tokens or 0)


class StoredCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as the store keeps it; `end` and `finish_s` are None while it runs."""

    start: CallStart
    start_s: float
    end: CallEnd | None = None
    finish_s: float | None = None


class ImplicitCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What later calls have to know of one that its client made outside of any program."""

    call_id: str
    """Its id at the client, which names the program that it becomes if it has none of its own."""
    thread: str
    """The thread that its client named."""
    conversation: str | None = None
    """The thread of its conversation, where that is another one."""
    is_loose: bool = False
    """Whether it is in the program of its client's process, for nothing said where it belongs."""
    is_nested: bool = False
    """Whether a tool made it, whose result another call of its program awaits."""
    calls_tools: bool = False
    """Whether its answer calls tools."""
    transcript: str | None = None
    """The digest of its transcript, if that may show another call to continue it."""
    owner: str | None = None


class AnswerSource(msgspec.Struct, frozen=True):
    """Where an answer came from."""

    program_id: str
    engine: str
    """The engine that made it."""
    implicit: ImplicitCall | None = None
    """Its call, if that was implicit."""


class Adoption(NamedTuple):
    """A finished call that a program takes over with its service, for it turned out to be that program's."""

    program_id: str
    """The program in which it is."""
    call_id: str
    """Its id at the client."""


class ProgramView(msgspec.Struct, kw_only=True):
    """A program's entry; `calls` holds the latest finished calls and all running ones, oldest first."""

    program_id: str
    name: str | None = None
    group: str | None = None
    """The group of its first call with one, as for its name."""
    session_ids: tuple[str, ...] = ()
    service_s: float = 0.0
    wait_s: float = 0.0
    active_calls: int = 0
    finished_calls: int = 0
    first_arrival_s: float
    last_event_s: float
    calls: tuple[StoredCall, ...] = ()
    flags: tuple[str, ...] = ()
    """The flags of its calls, each once."""
    intercepted_s: float = 0.0
    """The seconds that its tools took at the client."""
    is_ending: bool = False
    """Whether the program ends with its last running call."""
    active_threads: int = 0
    """Threads with a running call."""
    total_service_s: float = 0.0
    """The engines' time of all its finished calls, independent of the policy."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    last_interceptions: tuple[tuple[str, float], ...] = ()
    """The tools that ran before its latest call that reported any."""
    class_id: str | None = None
    owner: str | None = None
    """Its owner, where identity is strict."""

    @property
    def work(self) -> float:
        """Return the work of its finished calls."""
        return program_work(self.prompt_tokens, self.cached_tokens, self.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ProgramEnd:
    """A program that was removed from the table, and its work."""

    program_id: str
    class_id: str | None = None
    work: float = 0.0
    """The work of its finished calls; 0 if unknown, as where nothing identified the program."""


def tenant_of(class_id: str | None) -> str:
    """Return the tenant of a class, by its id: that of its programs. Empty without tenants."""
    return (class_id or "").partition(CLASS_SEPARATOR)[0]


def without_implicit(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags of a call that has a program of its own."""
    return tuple(flag for flag in flags if flag != IMPLICIT)


def adopted_start(start: CallStart, program_id: str) -> CallStart:
    """Return the start of a call as that of the first call of another program."""
    return replace(start, program_id=program_id, parents=(), flags=without_implicit(start.flags))


def adopted_call(call: StoredCall, program_id: str) -> StoredCall:
    """Return a finished call as the first one of another program."""
    end = None if call.end is None else replace(call.end, program_id=program_id)
    return replace(call, start=adopted_start(call.start, program_id), end=end)


def call_key(call_id: str) -> str:
    """Return the name of a call among the ids of answers."""
    return _CALL + call_id


def program_work(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> float:
    """Return the work of a program's calls; prompt tokens that were cached take none."""
    return work_of(prompt_tokens - cached_tokens, output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPage:
    """A part of the list of programs, without their calls."""

    programs: list[ProgramView]
    cursor: str | None
    """Where the next page begins; None at the end of the list. A page may be empty and not the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much a store holds."""

    programs: int
    sessions: int
    active_calls: int
    active_programs: int = 0
    """Programs with running calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What a round of the reaper removed."""

    programs: tuple[str, ...]
    sessions: tuple[str, ...]


class ProgramStore(Protocol):
    """Programs with their running calls and history, and the sessions that keep them."""

    async def open(self) -> None:
        """Prepare for work, before anything else."""

    async def close(self) -> None:
        """Release all resources and keep the stored data. May be called twice."""

    def failure(self) -> str | None:
        """Return why the store works with incomplete data; None while all is well."""

    async def begin(self, call: CallStart, now: float) -> Inherited:
        """Add a running call, and its program if it is missing; return what the call inherits.

        A call that it adopts moves to its program first, with its service.

        Raises:
            DuplicateCallError: if a call of this key is running.
            NotOwnerError: if the call has an owner and its program another.
        """

    async def settle(self, end: CallEnd, now: float) -> None:
        """Charge a running call to its program by the policy's rule and remove the program if it has ended.

        Raises:
            UnknownCallError: if no such call is running, so a call cannot be settled twice.
        """

    async def open_session(self, session_id: str, now: float, owner: str | None = None) -> bool:
        """Start a session or refresh one; return whether it was started.

        Raises:
            NotOwnerError: if an owner is given and a running session has another.
        """

    async def session_owner(self, session_id: str) -> str | None:
        """Return a running session's owner, empty if it has none; None if there is no such session."""
        ...

    async def heartbeat(self, session_id: str, now: float) -> bool:
        """Refresh a session; return False if there is none."""

    async def close_session(self, session_id: str, now: float) -> bool:
        """End a session and the programs that no other session keeps; return False if there was nothing."""

    async def end_program(self, program_id: str, now: float) -> bool:
        """End a program, at once or with its last running call; return False if there is none."""

    async def reap(self, now: float) -> Reaped:
        """Remove sessions without a heartbeat, with their programs, and idle programs."""

    async def keep_answer(self, tenant: str, ids: Sequence[str], source: AnswerSource, now: float) -> None:
        """Remember the source of an answer by the ids in it, until they idle as long as a program may.

        The name of its call (`call_key`) is one of them, if that was implicit.

        An id of two programs' answers has no source any more. A full store drops a tenant's oldest ids.
        """

    async def find_answer(self, tenant: str, ids: Sequence[str], now: float) -> AnswerSource | None:
        """Return the source of the first id that is known, None if none is or two programs have it."""
        ...

    async def find_calls(self, tenant: str, call_ids: Sequence[str], now: float) -> dict[str, AnswerSource]:
        """Return the calls of these ids whose names were kept, and are of one program."""
        ...

    async def program(self, program_id: str) -> ProgramView | None:
        """Return one program with its calls."""

    async def page(
        self, *, prefix: str = "", is_active: bool | None = None, after: str | None = None, limit: int
    ) -> ProgramPage:
        """Return some programs: those with running calls first, each in order of arrival.

        Args:
            prefix: The beginning of their ids.
            is_active: Only programs with running calls, or only those without; None means both.
            after: The cursor of the page before; None means from the beginning.
            limit: The greatest number of programs.

        Raises:
            ValueError: if `after` is no cursor.
        """
        ...

    async def counts(self) -> Counts:
        """Return how much the store holds."""

    async def spend(self, day: int, tokens: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Add to the tokens that tenants have used on a day (since 1970, UTC), and return their totals.

        The totals are those of all gateways that share the store; empty where nothing is shared.

        Args:
            day: Its number.
            tokens: For each tenant the tokens to add, and the total that is known. A store that has lost its
                own total goes on from that.
        """
        ...

    async def recent_ends(self) -> list[ProgramEnd]:
        """Return the programs that ended before this gateway started, as far as the store remembers them."""
        ...

    def subscribe(self, on_end: Callable[[ProgramEnd], None]) -> None:
        """Call `on_end` with each program that ends, once, when its last running call has ended.

        Every end is published: by its client, with a final call, with its last session, or for being idle.
        A shared store also publishes the ends that other gateways brought about. `on_end` must not raise or
        block.
        """
