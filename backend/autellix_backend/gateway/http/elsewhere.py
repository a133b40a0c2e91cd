"""The other workers' part of what operators see, and this worker's part for them.

The part of a worker that does not answer within a second is missing; a header of the answer names the worker.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import TypeVar

import msgspec
from starlette.types import Scope

from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.explain.event_feed import Event, EventFeed
from autellix_backend.gateway.explain.overview import CallElsewhere, seen_from_elsewhere
from autellix_backend.gateway.history.ended_program import EndedProgram
from autellix_backend.gateway.history.history import OpenProgram, ProgramHistory
from autellix_backend.gateway.http.mark import note_missing
from autellix_backend.gateway.workers.hub import EVENT, EVENTS_WANTED
from autellix_backend.gateway.workers.others import OtherWorkers

OPEN_CALLS, ENDED, ENDED_LIST, LIVING = "open_calls", "ended", "ended_list", "living"
MAX_CALLS = 4096
"""The most open calls in one answer."""

T = TypeVar("T")


async def open_calls(others: OtherWorkers, scope: Scope, prefix: str) -> list[CallElsewhere]:
    """Return the other workers' open calls of programs whose ids have a prefix."""
    return await _ask(others, scope, OPEN_CALLS, prefix, CallElsewhere)


async def ended_parts(others: OtherWorkers, scope: Scope, program_id: str) -> list[EndedProgram]:
    """Return the other workers' parts of an ended program."""
    return await _ask(others, scope, ENDED, program_id, EndedProgram)


async def ended_list(
    others: OtherWorkers, scope: Scope, prefix: str, before_s: float, limit: int
) -> list[EndedProgram]:
    """Return the other workers' parts of the last programs that ended before a moment (s since 1970)."""
    return await _ask(others, scope, ENDED_LIST, (prefix, before_s, limit), EndedProgram)


async def living_parts(others: OtherWorkers, scope: Scope, program_id: str) -> list[OpenProgram]:
    """Return the other workers' parts of a program that has not ended."""
    return await _ask(others, scope, LIVING, program_id, OpenProgram)


def answer_open_calls(others: OtherWorkers, registry: CallRegistry, pool: EnginePool) -> None:
    """Answer the other workers' questions about open calls."""

    def encode(prefix: str) -> bytes:
        engines = {handle.name: handle.queue for handle in pool}
        calls = [call for call in registry if call.start.program_id.startswith(prefix)]
        return msgspec.msgpack.encode(
            [
                seen_from_elsewhere(
                    call, engines[call.engine].why_queued(call.start.key) if call.engine in engines else None
                )
                for call in calls[:MAX_CALLS]
            ]
        )

    others.answer(OPEN_CALLS, encode)


def answer_history(others: OtherWorkers, history: ProgramHistory) -> None:
    """Answer the other workers' questions about programs and their settled calls."""

    def encode(program: EndedProgram | OpenProgram | None) -> bytes:
        return msgspec.msgpack.encode([] if program is None else [program])

    async def encode_list(content: tuple[str, float, int]) -> bytes:
        prefix, before_s, limit = content
        found = [each for each in history.programs(prefix) if each.ended_at_s <= before_s]
        return await asyncio.to_thread(msgspec.msgpack.encode, found[:limit])

    others.answer(ENDED, lambda program_id: encode(history.find(program_id)))
    others.answer(LIVING, lambda program_id: encode(history.living(program_id)))
    others.answer(ENDED_LIST, encode_list)


def join_feeds(others: OtherWorkers, feed: EventFeed) -> None:
    """Exchange events of calls with the other workers, while there are subscribers."""
    if not others.exist:
        return

    relay = partial(others.tell, EVENT)
    others.answer(EVENTS_WANTED, lambda is_wanted: feed.relay_calls(relay if is_wanted else None))
    others.answer(EVENT, lambda content: feed.deliver(msgspec.convert(content, Event)))
    feed.on_listeners(lambda is_listening: others.tell(EVENTS_WANTED, is_listening))
    # The parent then tells every worker whether another one listens, this one too.
    others.tell(EVENTS_WANTED, False)


async def _ask(others: OtherWorkers, scope: Scope, kind: str, content: object, item: type[T]) -> list[T]:
    """Return the items of all workers' answers."""
    answers = await others.ask(kind, content)
    note_missing(scope, [worker for worker, answer in answers.items() if answer is None])
    parts = [answer for answer in answers.values() if answer is not None]
    # In a thread: a worker may have thousands.
    decode = msgspec.msgpack.Decoder(list[item]).decode  # type: ignore[valid-type]
    return list(chain.from_iterable([await asyncio.to_thread(decode, part) for part in parts]))
