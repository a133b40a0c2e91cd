"""Why a call did not find the context of the call before in its engine's prefix cache.

A settled call is compared with the conversation of its program that it goes on from: the engine says how much
it found, the last call how much there was. Only where that is too little are the two requests compared, by
their outlines; a call that found its context costs the outlines of its new messages. No text is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from autellix_backend.core.recent import RecentMap
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.identity.outlines import Break, Kind, Outline, head_bytes, transcript_of
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.settled_call import Outcome, PrefixBreak, SettledCall

MAX_DIGESTS = 500_000
"""Of all programs, by `Outline.size`; the outline of a usual agent has some hundred."""
MAX_CONVERSATIONS = 4
"""Of one program, those used last; sub-agents have their own."""
SLACK_TOKENS = 512
SLACK_SHARE = 0.05
"""Missing less is no break: engines find whole blocks, of up to some hundred tokens in hybrid models."""
MAX_AGENT = 128
UNKNOWN_CLIENT = "unknown"
_PRODUCT = re.compile(r"[A-Za-z][\w.+-]{0,40}/[\w.+-]{1,20}")


class _Conversation(msgspec.Struct, kw_only=True, eq=False):
    outline: Outline
    thread: str
    model: str | None
    engine: str
    prompt_tokens: int
    settled_s: float


class PrefixDoctor:
    """Finds the calls that leave the prefix of their program, and why."""

    def __init__(self, metrics: GatewayMetrics, *, idle_s: float) -> None:
        """Know nothing yet; a program is forgotten `idle_s` after its last call."""
        self._metrics = metrics
        self._programs: RecentMap[str, list[_Conversation]] = RecentMap(ttl_s=idle_s, max_entries=MAX_DIGESTS)

    def examine(self, call: GatewayCall, settled: SettledCall) -> SettledCall:
        """Return the record of a settled call, with where it left its prefix, if it did."""
        fields, usage = call.request.body.fields, settled.engine_usage
        if settled.outcome is not Outcome.OK or settled.record_count != 1 or call.is_alone:
            return settled
        # A history that the server keeps is not in the request.
        if usage is None or "previous_response_id" in fields or (messages := transcript_of(fields)) is None:
            return settled
        tenant = settled.tenant
        known = self._programs.get(tenant, call.start.program_id) or []
        found: PrefixBreak | None = None
        last = _followed(known, call.start.thread_id, messages)
        before = last or _nearest(known, call)
        outline = None if last is None else last.outline
        # What a call left that was still running when this one began is not known.
        if before is not None and usage.cached_tokens is not None and before.settled_s <= call.began_s:
            expected = min(before.prompt_tokens, usage.prompt_tokens)
            is_short = expected - usage.cached_tokens > max(SLACK_TOKENS, SLACK_SHARE * expected)
            if is_short:
                # The ends of messages may agree where something before them does not.
                outline = Outline(fields, messages)
                kind, path = _cause(before, last, outline, call, settled)
                found = PrefixBreak(kind, path, expected, usage.cached_tokens, usage.prompt_tokens)
            self._metrics.count_prefix(client_of(call.request.headers), None if found is None else found.kind)
        if outline is None or outline.head_bytes != head_bytes(fields):
            outline = Outline(fields, messages)
        replaced = last if found is None or last else _replaced(found, before)
        if replaced is not None:
            known.remove(replaced)
        self._keep(call, settled, usage.prompt_tokens, known, outline)
        return settled if found is None else replace(settled, prefix_break=found)

    def expire(self, now: float) -> None:
        """Forget the programs that have been idle for too long."""
        self._programs.expire(now)

    def _keep(
        self,
        call: GatewayCall,
        settled: SettledCall,
        prompt_tokens: int,
        known: list[_Conversation],
        outline: Outline,
    ) -> None:
        known.append(
            _Conversation(
                outline=outline,
                thread=call.start.thread_id,
                model=call.request.body.model,
                engine=call.engine,
                prompt_tokens=prompt_tokens,
                settled_s=settled.settled_s,
            )
        )
        del known[:-MAX_CONVERSATIONS]
        size = sum(each.outline.size for each in known)
        self._programs.put(settled.tenant, call.start.program_id, known, settled.settled_s, size)


def _followed(known: list[_Conversation], thread: str, messages: msgspec.Raw) -> _Conversation | None:
    """Return the conversation that goes on with some messages, which are added to its outline."""
    ours = (each for each in reversed(known) if each.thread == thread)
    return next((each for each in ours if each.outline.follow(messages)), None)


def _nearest(known: list[_Conversation], call: GatewayCall) -> _Conversation | None:
    """Return the conversation of a call's thread that was used last, of its model if there is one."""
    ours = [each for each in reversed(known) if each.thread == call.start.thread_id]
    same = (each for each in ours if each.model == call.request.body.model)
    return next(same, next(iter(ours), None))


def _replaced(found: PrefixBreak, before: _Conversation | None) -> _Conversation | None:
    """Return the conversation whose place a changed one takes; a sub-agent's takes none."""
    return None if found.kind == Kind.SUB_AGENT else before


def _cause(
    before: _Conversation,
    last: _Conversation | None,
    outline: Outline,
    call: GatewayCall,
    settled: SettledCall,
) -> Break:
    found = before.outline.first_break(outline)
    if last is None and found is not None and found.kind is Kind.SUB_AGENT:
        return found
    if before.model != call.request.body.model:
        return Break(Kind.MODEL, "model")
    if before.engine != call.engine:
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
