"""The program of an implicit call: one that its client made outside of any program.

The client names the program of its process, and which calls the call depends on. That program is right for a
pipeline or a map-reduce of single prompts. For agents it would put strangers into one program, so evidence
decides, in this order:

1. The call continues a known answer, by an id in it or by its transcript: it is in that answer's program.
2. A call that it depends on has called tools, or was itself made by a tool: it is a sub-agent's, or a prompt
   within the tool, and in that program.
3. It offers tools, so others may continue it: it is a program of its own, as without the client.
4. Nothing else: it is loose, in the program of its process. If a later call continues it, it leaves that
   program for one of its own.

What a call depends on counts only within its program. Where two cases look alike, such as a second agent and
a sub-agent that a program starts without a tool call, the calls are apart, as without the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from autellix_backend.identity.scoped_ids import scoped
from autellix_backend.stores.base import Adoption, AnswerSource, ImplicitCall


class ImplicitPlace(NamedTuple):
    """Where an implicit call belongs."""

    program: str
    parents: tuple[str, ...] | None
    call: ImplicitCall
    adopts: Adoption | None = None
    engine: str | None = None
    """The engine that has the context of the call that it adopts."""

    @property
    def thread(self) -> str:
        """The call's thread."""
        return self.call.conversation or self.call.thread


class ImplicitArrival(NamedTuple):
    """An implicit call as its client states it."""

    call_id: str
    program: str
    """The program of its process."""
    thread: str
    parents: tuple[str, ...] | None
    owner: str | None
    transcript: str | None
    """The digest of its transcript."""
    offers_tools: bool


def place(
    arrival: ImplicitArrival,
    tenant: str,
    *,
    continued: AnswerSource | None,
    extended: str | None,
    parents: Mapping[str, AnswerSource],
) -> ImplicitPlace:
    """Return where a call belongs.

    Args:
        arrival: The call.
        tenant: Its tenant, in whose names programs are.
        continued: The answer that it continues, if its call is known.
        extended: The program of the transcript that it extends, if only that is known.
        parents: The calls that it depends on, as far as they are known.
    """
    call = ImplicitCall(
        call_id=arrival.call_id,
        thread=arrival.thread,
        transcript=arrival.transcript,
        owner=arrival.owner,
    )
    if continued is not None:
        before = continued.implicit
        if before is not None:
            call = replace(call, conversation=before.conversation, is_nested=before.is_nested)
        return _joined(arrival, tenant, continued, call, parents)
    if extended is not None:
        return ImplicitPlace(extended, _kept(arrival, tenant, extended, parents), call)
    for source in parents.values():
        before = source.implicit
        if before is not None and (before.calls_tools or before.is_nested):
            # In line: its client makes the sub-agent's calls in the thread of those around them.
            is_inline = before.thread == arrival.thread
            call = replace(call, conversation=arrival.call_id if is_inline else None, is_nested=True)
            return _joined(arrival, tenant, source, call, parents)
    if arrival.offers_tools:
        return ImplicitPlace(scoped(tenant, arrival.call_id), (), call)
    kept = _kept(arrival, tenant, arrival.program, parents)
    return ImplicitPlace(arrival.program, kept, replace(call, is_loose=True))


def program_of(source: AnswerSource, tenant: str) -> str:
    """Return the program that a known call belongs to once another one does."""
    call = source.implicit
    return scoped(tenant, call.call_id) if call is not None and call.is_loose else source.program_id


def _joined(
    arrival: ImplicitArrival,
    tenant: str,
    source: AnswerSource,
    call: ImplicitCall,
    parents: Mapping[str, AnswerSource],
) -> ImplicitPlace:
    """Return a place in the program of a known call, which that takes over if it is loose."""
    program, before = program_of(source, tenant), source.implicit
    kept = _kept(arrival, tenant, program, parents)
    if before is None or not before.is_loose:
        return ImplicitPlace(program, kept, call)
    return ImplicitPlace(program, kept, call, Adoption(source.program_id, before.call_id), source.engine)


def _kept(
    arrival: ImplicitArrival, tenant: str, program: str, parents: Mapping[str, AnswerSource]
) -> tuple[str, ...] | None:
    """Return the calls of a program that a call depends on; None if its client does not know them all."""
    if arrival.parents is None:
        return None
    kept = tuple(
        parent
        for parent in arrival.parents
        if (source := parents.get(parent)) is not None
        and program in (source.program_id, program_of(source, tenant))
    )
    # One that failed, or whose answer has not ended yet, is known to nobody.
    return kept or (() if parents.keys() >= set(arrival.parents) else None)
