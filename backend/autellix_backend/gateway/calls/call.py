"""The records of one call: received, assigned to an engine, open, answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from autellix_backend.gateway.calls.body import CallBody, most_output_tokens
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.queue import QueuedCall
from autellix_backend.gateway.engines.refusals import Caller
from autellix_backend.gateway.tenancy.limiter import Demand
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.identity.aliases import FOREIGN_TOKEN
from autellix_backend.identity.answer_ids import MAX_IDS, MAX_TOOLS, read_answer_ids
from autellix_backend.identity.identity import Identity
from autellix_backend.reports.receipt import Receipt
from autellix_backend.reports.report import EngineReport
from autellix_backend.stores.base import CallStart, Inherited

FURTHER_REPORTS = 256
MAX_PROMPT_TOKENS = 2**17
"""The largest estimate that limits count: the bytes of a longer body are mostly those of images."""
OWN_PREFIX = "x-autellix-"


class ReceivedCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A call as its client sent it: within its tenant's limits, parsed and identified."""

    dialect: Dialect
    tenant: Tenant
    identity: Identity
    """Program and session by the ids that the backend knows them by."""
    headers: Mapping[str, str]
    """Headers by their lower-case names."""
    body: CallBody
    caller: Caller
    """Whose it is, as far as an engine's faults may depend on that."""

    @property
    def takes_comments(self) -> bool:
        """Whether its client sends headers of ours, and so reads a receipt in a stream's comment."""
        return any(name.startswith(OWN_PREFIX) for name in self.headers)


class Assigned(msgspec.Struct, kw_only=True, eq=False):
    """A received call with the engine that the router has chosen for it."""

    request: ReceivedCall
    handle: EngineHandle
    """The engine that it is at, perhaps another one for each attempt."""
    prompt_tokens: int = 0
    """The estimated length of its prompt."""
    prefix: str = ""
    """The id of what its prompt begins with, if it is its program's first and something depends on it."""
    is_unanswered: bool = True
    """Whether it counts in the engine's bounds: until the first byte of its answer."""

    def leave_bounds(self) -> None:
        """Free its share of the engine's bounds; may be called twice."""
        if self.is_unanswered:
            self.is_unanswered = False
            self.handle.bounds.remove(self.request.body.size_bytes)

    @property
    def demand(self) -> Demand:
        """What it will probably use: an estimate of its prompts, and the bound of its output."""
        body, answers = self.request.body, self.request.body.prompt_count * self.request.body.choice_count
        each = most_output_tokens(body, self.request.dialect)
        most = None if each is None else each * answers
        prompts = min(self.prompt_tokens, MAX_PROMPT_TOKENS) * body.choice_count
        return Demand(body.size_bytes, prompts, most)


class Answer(msgspec.Struct, kw_only=True, eq=False):
    """What has come of a call's answer so far."""

    first_bytes_s: float | None = None
    """When the first bytes of a stream went out."""
    streamed_events: int = 0
    """The events of a stream so far: about as many as tokens."""
    size_bytes: int = 0
    """The length of a whole answer, if it is one of text."""
    response_id: str | None = None
    """The id of the answer, which a later call may continue."""
    tool_calls: list[str] = []
    """The unique ids of the tool calls in it."""
    asked_tools: list[str] = []
    """The names of the tools that it calls."""
    status: int | None = None
    """The status of the error that the call fails with."""
    reason: str | None = None
    """Why it fails, in at most 200 characters."""

    def note_ids(self, content: bytes, identity: Identity) -> None:
        """Note the ids in the whole answer to a call of an identity, or in an event of its stream."""
        response_id, tool_calls, tools = read_answer_ids(content)
        if tools:
            self.asked_tools += [tool for tool in tools if tool not in self.asked_tools][:MAX_TOOLS]
        if identity.source == FOREIGN_TOKEN:
            return
        self.response_id = response_id or self.response_id
        self.tool_calls += tool_calls[: MAX_IDS - len(self.tool_calls)]


class GatewayCall(QueuedCall, kw_only=True, eq=False):
    """A call that has begun: it is in the process table, and will be settled."""

    request: ReceivedCall
    assigned: Assigned
    start: CallStart
    """Its ids as the backend knows them; the key is unique over all calls."""
    inherited: Inherited
    """What its program had when it began, and the service that the policy lets it start with."""
    began_s: float
    level: int
    """The level that it enters the engine's queues at."""
    shown_program: str
    """The program's id as its client knows it."""
    is_last: bool
    """Whether its program in the engine ends with it, as far as is known before its answer."""
    rate_headers: Mapping[str, str]
    """The headers about its tenant's rate limits."""
    engine_key: str
    """Its id in the engine, another one for each attempt."""
    marked_id: str = ""
    """The request id of a beam search, which holds its arguments."""
    sent_s: float | None = None
    """When it was last sent to the engine."""
    reports: list[EngineReport] = []
    has_reports: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Set when as many reports have come as the call became requests."""
    answer: Answer = msgspec.field(default_factory=Answer)
    receipt: Receipt | None = None
    """Set when the call is settled."""

    @property
    def engine(self) -> str:
        """The name of its engine."""
        return self.assigned.handle.name

    @property
    def max_reports(self) -> int:
        """How many of its reports are kept: engines that call tools themselves make more requests for it."""
        return self.request.body.record_count + FURTHER_REPORTS
