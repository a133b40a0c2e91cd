"""Why a call did not find the context of the call before in its engine's prefix cache.

A settled call is compared with the conversation of its program that it goes on from: the engine says how much
it found, the last call how much there was. Only where that is too little are the two bodies compared. So the
last body of each conversation is kept, within a bound, until the next one comes or the program ends; of its
text nothing leaves this module but the path of a difference. A call that found its context costs a look-up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from autellix_backend.core.recent import RecentMap
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.identity.prefix_breaks import (
    Break,
    Fields,
    Kind,
    common_length,
    first_break,
    has_transcript,
    transcript,
)
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.settled_call import Outcome, PrefixBreak, SettledCall, Usage

MAX_BYTES = 64 * 2**20
"""Of the bodies that are kept; beyond that the tenant with the most loses its program of the longest ago."""
MAX_CONVERSATIONS = 4
"""Of one program, those used last; sub-agents have their own."""
SLACK_TOKENS = 512
SLACK_SHARE = 0.05
"""Missing less is no break: engines find whole blocks, of up to some hundred tokens in hybrid models."""
MAX_SHARE = 0.03
"""Of the time that comparing bodies may take; a client that breaks each of its prefixes would take more."""
MAX_BURST_S = 0.3
MAX_AGENT = 128
UNKNOWN_CLIENT = "unknown"
_PRODUCT = re.compile(r"[A-Za-z][\w.+-]{0,40}/[\w.+-]{1,20}")


class _Conversation(msgspec.Struct, kw_only=True, eq=False):
    """The last call of a conversation."""

    fields: Fields
    """Slices of its body, which they keep in memory."""
    size_bytes: int
    thread: str
    model: str | None
    engine: str
    prompt_tokens: int
    settled_s: float


class PrefixDoctor:
    """Finds the calls that leave the prefix of their program, and why."""

    def __init__(
        self, metrics: GatewayMetrics, *, idle_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Know nothing yet; a program is forgotten `idle_s` after its last call."""
        self._metrics = metrics
        self._clock = clock
        self._budget_s, self._refilled_s = MAX_BURST_S, clock()
        self._programs: RecentMap[str, list[_Conversation]] = RecentMap(ttl_s=idle_s, max_entries=MAX_BYTES)

    def examine(self, call: GatewayCall, settled: SettledCall) -> SettledCall:
        """Return the record of a settled call, with where it left its prefix, if it did."""
        body, usage = call.request.body, settled.engine_usage
        if settled.outcome is not Outcome.OK or settled.record_count != 1 or call.is_alone:
            return settled
        # A history that the server keeps is not in the request.
        if usage is None or usage.cached_tokens is None or "previous_response_id" in body.fields:
            return settled
        if not has_transcript(body.fields, body.size_bytes):
            return settled
        last = _Conversation(
            fields=body.fields,
            size_bytes=body.size_bytes,
            thread=call.start.thread_id,
            model=body.model,
            engine=call.engine,
            prompt_tokens=usage.prompt_tokens,
            settled_s=settled.settled_s,
        )
        tenant, program_id = settled.tenant, call.start.program_id
        known = self._programs.get(tenant, program_id) or []
        before, found = _before(known, last), None
        # What a call left that was still running when this one began is not known.
        if before is not None and before.settled_s <= call.began_s:
            found = self._found(before, last, usage, settled)
            self._count(call, found)
            has_gone_on = not _is_short(before.prompt_tokens, usage.cached_tokens)
            if has_gone_on or (found is not None and found.kind is not Kind.SUB_AGENT):
                known = [each for each in known if each is not before]
        known = [*known, last][-MAX_CONVERSATIONS:]
        size_bytes = sum(each.size_bytes for each in known)
        self._programs.put(tenant, program_id, known, settled.settled_s, size_bytes)
        return settled if found is None else replace(settled, prefix_break=found)

    def on_program_ended(self, tenant: str, program_id: str) -> None:
        """Forget an ended program."""
        self._programs.discard(tenant, program_id)

    def expire(self, now: float) -> None:
        """Forget the programs that have been idle for too long."""
        self._programs.expire(now)

    def _found(
        self, before: _Conversation, last: _Conversation, usage: Usage, settled: SettledCall
    ) -> PrefixBreak | None:
        expected, cached = min(before.prompt_tokens, usage.prompt_tokens), usage.cached_tokens or 0
        if not _is_short(expected, cached):
            return None
        began_s = self._clock()
        refill_s = (began_s - self._refilled_s) * MAX_SHARE
        self._budget_s, self._refilled_s = min(MAX_BURST_S, self._budget_s + refill_s), began_s
        kind, path = Break(Kind.UNEXAMINED) if self._budget_s < 0 else _cause(before, last, settled)
        self._budget_s -= self._clock() - began_s
        return PrefixBreak(kind, path, expected, cached, usage.prompt_tokens)

    def _count(self, call: GatewayCall, found: PrefixBreak | None) -> None:
        if found is None or found.kind is not Kind.UNEXAMINED:
            self._metrics.count_prefix(client_of(call.request.headers), None if found is None else found.kind)


def _before(known: list[_Conversation], last: _Conversation) -> _Conversation | None:
    """Return the conversation that a call goes on from, or is the likeliest to; None if it is the first."""
    ours = [each for each in reversed(known) if each.thread == last.thread]
    if len(ours) < 2:
        return ours[0] if ours else None
    text = transcript(last.fields)
    return max(
        ours, key=lambda each: (common_length(transcript(each.fields), text), each.model == last.model)
    )


def _is_short(expected_tokens: int, found_tokens: int) -> bool:
    return expected_tokens - found_tokens > max(SLACK_TOKENS, SLACK_SHARE * expected_tokens)


def _cause(before: _Conversation, last: _Conversation, settled: SettledCall) -> Break:
    found = first_break(before.fields, last.fields)
    if found is not None and found.kind is Kind.SUB_AGENT:
        return found
    if before.model != last.model:
        return Break(Kind.MODEL, "model")
    if before.engine != last.engine:
        return Break(Kind.MOVED)
    if found is not None:
        return found
    return Break(Kind.MADE_WAY if settled.receipt.inactive_s > 0 else Kind.EVICTED)


@lru_cache(maxsize=256)
def _product(agent: str) -> str:
    product = _PRODUCT.match(agent)
    return UNKNOWN_CLIENT if product is None else product[0]


def client_of(headers: Mapping[str, str]) -> str:
    """Return the name and version of a client by its `User-Agent`, such as `claude-cli/2.1.233`."""
    return _product(headers.get("user-agent", "")[:MAX_AGENT])
