"""The record of one call, which grows along its way: parsed, assigned, begun, queued, sent, answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.gateway.calls.body import CallBody, most_output_tokens
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.queue import QueuedCall
from autellix_backend.gateway.engines.refusals import Caller
from autellix_backend.gateway.engines.upstream import REQUEST_ID_HEADER
from autellix_backend.gateway.tenancy.limiter import Demand
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.identity.aliases import FOREIGN_TOKEN
from autellix_backend.identity.answer_ids import MAX_IDS, MAX_TOOLS, read_answer_ids
from autellix_backend.identity.identity import Identity
from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.reports.receipt import Receipt
from autellix_backend.reports.report import EngineReport
from autellix_backend.stores.base import AnswerSource, CallEnd, CallStart, Inherited, call_key

FURTHER_REPORTS = 256
BYTES_PER_TOKEN = 4
"""Bytes per token of an answer that states no usage."""
MAX_PROMPT_TOKENS = 2**17
"""The largest estimate that limits count: the bytes of a longer body are mostly those of images."""
OWN_PREFIX = "x-autellix-"


@dataclass(slots=True, eq=False, kw_only=True)
class GatewayCall(QueuedCall):
    """One call on its way; each station sets the fields that the next ones read."""

    # Parsed
    dialect: Dialect
    tenant: Tenant
    identity: Identity
    """Program and session by the ids that the backend knows them by."""
    headers: Mapping[str, str]
    """Headers by their lower-case names."""
    body: CallBody

    # Assigned by the router
    handle: EngineHandle = field(init=False, repr=False)
    """The engine that it is at, perhaps another one for each attempt."""
    prompt_tokens: int = 0
    """The estimated length of its prompt."""
    prefix: str = ""
    """The id of what its prompt begins with, if it is its program's first and something depends on it."""
    is_unanswered: bool = False
    """Whether it counts in the engine's bounds: until the first byte of its answer."""

    # Begun by the registry
    start: CallStart = field(init=False)
    """Its ids as the backend knows them; the key is unique over all calls."""
    began_s: float = 0.0
    level: int = 1
    """The level that it enters the engine's queues at."""
    entry_service_s: float = 0.0
    """The service that the policy lets it start with."""
    inherited: Inherited = field(init=False)
    engine_key: str = ""
    """Its id in the engine, another one for each attempt."""
    marked_id: str = ""
    """The request id of a beam search, which holds its arguments."""
    rate_headers: Mapping[str, str] = field(default_factory=dict)
    """The headers about its tenant's rate limits."""

    # Sent and answered
    reports: list[EngineReport] = field(default_factory=list)
    has_reports: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when as many reports have come as the call became requests."""
    sent_s: float | None = None
    """When it was last sent to the engine."""
    first_bytes_s: float | None = None
    """When the first bytes of its streamed answer went out."""
    streamed_events: int = 0
    """The events of its streamed answer so far: about as many as tokens."""
    answer_bytes: int = 0
    """The length of its whole answer, if it is one of text."""
    response_id: str | None = None
    """The id of its answer, which a later call may continue."""
    tool_calls: list[str] = field(default_factory=list)
    """The unique ids of the tool calls in its answer."""
    asked_tools: list[str] = field(default_factory=list)
    """The names of the tools that its answer calls."""
    status: int | None = None
    """The status of the error that it fails with."""
    reason: str | None = None
    """Why it fails, in at most 200 characters."""
    receipt: Receipt | None = None
    """Set when the call is settled."""

    def __post_init__(self) -> None:
        self.caller = Caller(self.identity.program, self.tenant.name, self.body.model)

    @property
    def engine(self) -> str:
        """The name of its engine."""
        return self.handle.name

    @property
    def shown_program(self) -> str:
        """The program's id as its client knows it."""
        return self.tenant.shown(self.identity.program)

    @property
    def takes_comments(self) -> bool:
        """Whether its client sends headers of ours, and so reads a receipt in a stream's comment."""
        return any(name.startswith(OWN_PREFIX) for name in self.headers)

    @property
    def is_last(self) -> bool:
        """Whether its program in the engine ends with it, as far as is known before its answer."""
        is_anonymous = self.identity.is_anonymous and not self.body.offers_tools
        return self.identity.is_final or self.is_alone or is_anonymous

    @property
    def ends_program(self) -> bool:
        """Whether its program ends with it: what tool calls return comes with another call."""
        return self.identity.is_final or (
            self.identity.is_anonymous and not (self.body.offers_tools and self.tool_calls)
        )

    @property
    def answer_ids(self) -> list[str]:
        """Return the ids by which later calls are known to be its program's: its answer's, and its own."""
        ids = self.tool_calls if self.response_id is None else [self.response_id, *self.tool_calls]
        return ids if self.identity.implicit is None else [*ids, call_key(self.identity.call)]

    @property
    def answer_source(self) -> AnswerSource:
        """Return where its answer came from, for the calls that continue it."""
        implicit = self.identity.implicit
        if implicit is not None:
            implicit = replace(implicit, calls_tools=bool(self.asked_tools))
        return AnswerSource(self.start.program_id, self.engine, implicit)

    def note_ids(self, content: bytes) -> None:
        """Note the ids in a whole answer, or in an event of a stream."""
        response_id, tool_calls, tools = read_answer_ids(content)
        self.asked_tools += [tool for tool in tools if tool not in self.asked_tools][:MAX_TOOLS]
        if self.identity.source == FOREIGN_TOKEN:
            return
        self.response_id = response_id or self.response_id
        self.tool_calls += tool_calls[: MAX_IDS - len(self.tool_calls)]

    def begin(self, start: CallStart, inherited: Inherited, now: float, class_name: str = "") -> None:
        """Enter the process table; `class_name` is the class of its program."""
        implicit = self.identity.implicit
        self.is_alone = implicit is not None and implicit.is_loose
        if self.is_alone:
            inherited = replace(inherited, age_s=0.0, work=0.0)
        self.start, self.inherited, self.began_s, self.engine_key = start, inherited, now, start.key
        self.entry_service_s = inherited.service_s
        self.arrival = Arrival(
            start.key,
            # The program of its process mixes strangers; this is the one it has if a later call continues it.
            self.tenant.scoped(start.call_id) if self.is_alone else start.program_id,
            is_identified=self.identity.is_identified,
            thread_id=start.thread_id,
            tenant=self.tenant.name,
            weight=self.tenant.weight,
            service_s=inherited.program_service_s,
            wait_s=inherited.wait_s,
            inherited_s=inherited.service_s,
            expected_s=inherited.expected_s,
            age_s=inherited.age_s,
            work=inherited.work,
            hints=replace(start.hints, class_name=class_name) if class_name else start.hints,
            context=Context(self.prompt_tokens, prefix=self.prefix or None),
        )

    def make_start(self, key: str, class_id: str | None = None) -> CallStart:
        """Return the record for the store; `class_id` is None if the program's class is known already."""
        identity = self.identity
        return CallStart(
            key=key,
            call_id=identity.call,
            program_id=identity.program,
            thread_id=identity.thread,
            thread_name=identity.thread_name,
            parents=identity.parents,
            session_id=identity.session,
            name=identity.name,
            hints=identity.hints,
            flags=identity.flags,
            interceptions=identity.interceptions,
            owner=identity.owner,
            class_id=class_id,
            adopts=identity.adopts,
            is_identified=identity.is_identified,
        )

    def leave_bounds(self) -> None:
        """Free its share of the engine's bounds; may be called twice."""
        if self.is_unanswered:
            self.is_unanswered = False
            self.handle.bounds.remove(self.body.size_bytes)

    @property
    def max_reports(self) -> int:
        """How many of its reports are kept: engines that call tools themselves make more requests for it."""
        return self.body.record_count + FURTHER_REPORTS

    def make_receipt(self, outcome: Outcome, scheduler: SchedulerConfig, now: float) -> Receipt:
        """Add up the reports that have come; without any, estimate the service from the answer's tokens."""
        reports = self.reports
        if not reports:
            return Receipt(
                call_id=self.start.call_id,
                program_id=self.shown_program,
                wait_s=self.wait_s,
                service_s=self._estimated_service_s(outcome, scheduler, now),
                estimated=True,
                inactive_s=self.inactive_s,
            )
        return Receipt(
            call_id=self.start.call_id,
            program_id=self.shown_program,
            # The waits of parallel choices overlap.
            wait_s=self.wait_s + max([report.wait_s for report in reports]),
            service_s=sum([report.service_s for report in reports]),
            preemptions=sum([report.preemptions for report in reports]),
            demotions=sum([report.demotions for report in reports]),
            promotions=sum([report.promotions for report in reports]),
            level=max([report.level for report in reports]),
            cached_tokens=sum([report.cached_tokens for report in reports]),
            prompt_tokens=sum([report.prompt_tokens for report in reports]),
            output_tokens=sum([report.output_tokens for report in reports]),
            arrival_step=min([report.arrival_step for report in reports]),
            finish_step=max([report.finish_step for report in reports]),
            engine_steps=max([report.engine_steps for report in reports]),
            estimated=len(reports) < self.body.record_count,
            inactive_s=self.inactive_s + max([report.inactive_s for report in reports]),
        )

    @property
    def demand(self) -> Demand:
        """What it will probably use: an estimate of its prompts, and the bound of its output."""
        body, answers = self.body, self.body.prompt_count * self.body.choice_count
        each = most_output_tokens(body, self.dialect)
        most = None if each is None else each * answers
        prompts = min(self.prompt_tokens, MAX_PROMPT_TOKENS) * body.choice_count
        return Demand(body.size_bytes, prompts, most)

    def _price(self, outcome: Outcome) -> int:
        """Return the tokens that it costs: as reported, else as its answer states, else estimated.

        An engine that refused it, or was not there, did no work.
        """
        if self.reports:
            return sum([report.prompt_tokens + report.output_tokens for report in self.reports])
        if self.usage is not None:
            return self.usage.prompt_tokens + self.usage.output_tokens
        if self._is_unserved(outcome):
            return 0
        output_tokens = self.streamed_events + self.answer_bytes // BYTES_PER_TOKEN
        return self.demand.prompt_tokens + output_tokens

    def _is_unserved(self, outcome: Outcome) -> bool:
        is_gone = outcome in (Outcome.UNAVAILABLE, Outcome.ENGINE_ERROR) and not self.streamed_events
        return self.sent_s is None or outcome is Outcome.REJECTED or is_gone

    def _estimated_service_s(self, outcome: Outcome, scheduler: SchedulerConfig, now: float) -> float:
        """Return the nominal service of the answer's tokens, or of the estimated prompt and the stream.

        An aborted call ran for no longer than since it was sent, each of its requests.
        """
        if self.sent_s is None or self._is_unserved(outcome):
            return 0.0
        service_s = scheduler.nominal_service_s(*self._served_tokens())
        longest_s = (now - self.sent_s) * self.body.record_count
        return min(service_s, longest_s) if outcome is Outcome.ABORTED else service_s

    def _served_tokens(self) -> tuple[int, int]:
        """Return the prefilled and the decoded tokens, estimated where no usage has come."""
        if (usage := self.usage) is None:
            context = self.arrival.context
            return context.tokens if context else 0, self.streamed_events
        return max(0, usage.prompt_tokens - (usage.cached_tokens or 0)), usage.output_tokens

    def end(self, receipt: Receipt, outcome: Outcome) -> CallEnd:
        """Return what the store has to know of the settled call."""
        reports = self.reports
        # A report has better numbers than the answer.
        usage = self.usage if not reports else None
        return CallEnd(
            key=self.start.key,
            program_id=self.start.program_id,
            outcome=outcome.value,
            services_s=tuple([report.service_s for report in reports]) or (receipt.service_s,),
            wait_s=receipt.wait_s,
            table_wait_s=self.counted_wait_s + sum([report.table_wait_s for report in reports]),
            # The engine's number is the one that was used; it may know more of a program than the gateway.
            inherited_service_s=max(
                [report.inherited_service_s for report in reports], default=self.entry_service_s
            ),
            is_estimated=receipt.estimated,
            level=receipt.level,
            preemptions=receipt.preemptions,
            prompt_tokens=receipt.prompt_tokens if usage is None else usage.prompt_tokens,
            cached_tokens=receipt.cached_tokens if usage is None else usage.cached_tokens,
            output_tokens=receipt.output_tokens if usage is None else usage.output_tokens,
            is_final=self.ends_program,
        )

    def settled(self, receipt: Receipt, outcome: Outcome, now: float, *, ended_at_s: float) -> SettledCall:
        """Return the record of the settled call."""
        identity, body = self.identity, self.body
        runs, prefilled_s = self._runs()
        return SettledCall(
            start=self.start,
            receipt=receipt,
            outcome=outcome,
            status=self.status,
            reason=self.reason,
            began_s=self.began_s,
            settled_s=now,
            ended_at_s=ended_at_s,
            session_id=None if identity.session is None else self.tenant.shown(identity.session),
            tenant=self.tenant.name,
            identity_source=identity.source,
            engine=self.engine,
            operation=self.dialect.operation,
            model=body.model,
            is_streaming=body.is_streaming,
            body_bytes=body.size_bytes,
            record_count=body.record_count,
            first_token_s=None if self.first_bytes_s is None else self.first_bytes_s - self.began_s,
            sent_for_s=0.0 if self.sent_s is None else now - self.sent_s,
            runs=runs,
            prefilled_s=prefilled_s,
            inherited_service_s=self.entry_service_s,
            stated_usage=self.usage,
            streamed_events=self.streamed_events,
            price_tokens=self._price(outcome),
            is_final=identity.is_final,
            asked_tools=tuple(self.asked_tools),
            traceparent=self.headers.get("traceparent"),
            request_id=self.headers.get(REQUEST_ID_HEADER),
        )

    def _runs(self) -> tuple[tuple[tuple[float, float], ...], float | None]:
        """Return its runs in the engine, and the end of its prefill, in seconds from its arrival here."""
        # Parallel choices run at times of their own, which make no one line.
        if len(self.reports) != 1 or self.sent_s is None:
            return (), None
        [report], sent_for_s = self.reports, self.sent_s - self.began_s
        prefilled_s = None if report.prefilled_s is None else sent_for_s + report.prefilled_s
        return tuple((sent_for_s + start, sent_for_s + end) for start, end in report.runs), prefilled_s
