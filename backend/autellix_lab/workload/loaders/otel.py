"""OpenTelemetry traces of LLM calls: spans with the attributes of the GenAI conventions.

Sources: opentelemetry.io/docs/specs/semconv/gen-ai; OTLP's JSON, which a collector's file exporter writes
(`resourceSpans`); and the JSON of docs/otel_trace_replay.md in github.com/kubernetes-sigs/inference-perf,
read at commit 7de5ef2 (`spans`). A file is one JSON object or JSON lines, a folder holds *.json.

A call is a span of a chat or completion with the tokens of its prompt, or else its messages, whose tokens are
then counted; spans that failed without an answer are left out. A program is the calls with one
`autellix.program.id`, else one `gen_ai.conversation.id`, else one trace. Where a gateway's own attributes are
missing (`autellix.thread.id`, `autellix.parent.ids`):

- a thread is a span of an agent, and the calls outside of one are a thread too;
- `parents`: the calls whose answers are among the prompt's messages, else those of the same thread, and of
  the agents that it called, that had ended; for an agent's first call, those of the agent that called it;
- `shared_prefix_tokens`: the tokens that the provider's cache served, else what the prompt's text has in
  common with the last call of the thread, a parent or the first call, at most that call's context.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from autellix_backend.identity.prefix_breaks import common_length
from autellix_lab.workload.loaders.base import (
    LoadOptions,
    Record,
    as_record,
    read_json,
    read_json_lines,
)
from autellix_lab.workload.trace import CallTrace, ProgramTrace, TraceError

ROUNDING_S = 1e-5
"""Times are rounded: a call that starts this little before another ended may have waited for it."""
MAIN = "main"
OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})
AGENT = "invoke_agent"
PROMPT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
MAX_DIGITS = 19
"""Of a time in nanoseconds: more do not fit 64 bits."""


@dataclass(slots=True)
class _AnySpan:
    """A span of either form; times are in seconds since 1970."""

    record: Record
    attributes: Record
    trace_id: str
    span_id: str
    parent_id: str | None
    start_s: float
    end_s: float

    @property
    def operation(self) -> str:
        """What it is a span of: an attribute, else the first word of its name."""
        named = self.attributes.find("gen_ai.operation.name", str)
        return named or (self.record.find("name", str) or "").split(" ")[0]

    @property
    def has_failed(self) -> bool:
        """Whether its status is an error."""
        return (self.record.find("status", dict) or {}).get("code") in (2, "STATUS_CODE_ERROR")


@dataclass(slots=True)
class _RecordedMessage:
    role: str
    text: str


@dataclass(slots=True, eq=False)
class _ChatSpan:
    span: _AnySpan
    agents: list[_AnySpan]
    """The agents' spans around it, innermost first."""
    thread: str
    owner: str | None
    """The thread of the agent that called its agent."""
    prompt: list[_RecordedMessage]
    answer: str
    prompt_tokens: int
    output_tokens: int
    is_counted: bool
    """Whether its tokens are counted in its messages."""
    id: int = 0
    parents: list[_ChatSpan] = field(default_factory=list)
    ancestors: int = 0
    """A bit for each, by id."""

    @property
    def began_s(self) -> float:
        """When its outermost agent began, else it itself."""
        return min(span.start_s for span in (self.span, *self.agents))

    @property
    def prompt_text(self) -> str:
        """The messages of its prompt as one text."""
        return "".join(f"{message.role}\n{message.text}\n" for message in self.prompt)

    @property
    def context_text(self) -> str:
        """Prompt and answer as one text."""
        return f"{self.prompt_text}assistant\n{self.answer}\n"

    def had_ended(self, now_s: float) -> bool:
        """Return whether it had ended when another call began."""
        return self.span.end_s <= now_s + ROUNDING_S


def load_otel(path: Path, options: LoadOptions) -> list[ProgramTrace]:
    """Load a file of spans, JSON lines of spans, or every *.json of a folder in order of name.

    Raises:
        TraceError: for a folder without traces or a broken span; names the file and the field.
    """
    spans = [span for record in _records(path) for span in _spans(record)]
    spans.sort(key=lambda span: (span.start_s, span.end_s))
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    names = _agent_names(spans)
    programs: dict[str, list[_ChatSpan]] = {}
    for span in spans:
        call = _call(span, by_id, names, options) if span.operation in OPERATIONS else None
        if call is not None:
            _join(programs.setdefault(_program_id(span), []), call)
    origin_s = min((calls[0].began_s for calls in programs.values()), default=0.0)
    return [_program(name, calls, origin_s, options) for name, calls in programs.items()]


def _records(path: Path) -> Iterator[Record]:
    if ".jsonl" in path.suffixes:
        yield from read_json_lines(path)
        return
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise TraceError(str(path), "holds no *.json; expected files of spans")
    for file in files:
        yield as_record(read_json(file), str(file), "file")


def _spans(record: Record) -> Iterator[_AnySpan]:
    if "resourceSpans" not in record.values:
        yield from map(_flat_span, record.records("spans"))
        return
    for resource in record.records("resourceSpans"):
        for scope in resource.records("scopeSpans"):
            yield from map(_otlp_span, scope.records("spans"))


def _flat_span(record: Record) -> _AnySpan:
    return _AnySpan(
        record=record,
        attributes=Record(record.find("attributes", dict) or {}, record.where, f"{record.path}attributes."),
        trace_id=record.get("trace_id", str),
        span_id=record.get("span_id", str),
        parent_id=record.find("parent_span_id", str),
        start_s=_seconds(record, "start_time"),
        end_s=_seconds(record, "end_time"),
    )


def _seconds(record: Record, name: str) -> float:
    text = record.get(name, str)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise record.error(name, f"is {text!r}; expected a date and time of ISO 8601") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _otlp_span(record: Record) -> _AnySpan:
    items = record.records("attributes") if record.values.get("attributes") else []
    attributes = {item.get("key", str): _otlp_value(item.values.get("value")) for item in items}
    return _AnySpan(
        record=record,
        attributes=Record(attributes, record.where, f"{record.path}attributes."),
        trace_id=record.get("traceId", str),
        span_id=record.get("spanId", str),
        parent_id=record.find("parentSpanId", str),
        start_s=_nanoseconds(record, "startTimeUnixNano"),
        end_s=_nanoseconds(record, "endTimeUnixNano"),
    )


def _nanoseconds(record: Record, name: str) -> float:
    """Return a time in seconds. JSON of protocol buffers writes numbers of 64 bits as strings."""
    value = record.values.get(name)
    if not str(value).isdecimal() or len(str(value)) > MAX_DIGITS:
        raise record.error(name, f"is {value!r}; expected nanoseconds since 1970")
    return int(str(value)) / 1e9


def _otlp_value(value: object) -> Any:
    match value:
        case {"intValue": str() as digits} if digits.isdecimal() and len(digits) <= MAX_DIGITS:
            return int(digits)
        case {"arrayValue": {"values": list() as items}}:
            return [_otlp_value(item) for item in items]
        case {"arrayValue": _}:
            return []
        case {"kvlistValue": {"values": list() as items}}:
            pairs = [item for item in items if isinstance(item, dict)]
            return {str(pair.get("key")): _otlp_value(pair.get("value")) for pair in pairs}
        case {**held} if held:
            return next(iter(held.values()))
    return None


def _agent_names(spans: Iterable[_AnySpan]) -> dict[tuple[str, str], str]:
    """Return a name for each agent's span, unique in its trace."""
    names: dict[tuple[str, str], str] = {}
    used: Counter[tuple[str, str]] = Counter()
    for span in spans:
        if span.operation == AGENT:
            name = span.attributes.find("gen_ai.agent.name", str) or "agent"
            used[span.trace_id, name] += 1
            number = used[span.trace_id, name]
            names[span.trace_id, span.span_id] = name if number == 1 else f"{name}.{number}"
    return names


def _agents(span: _AnySpan, by_id: Mapping[tuple[str, str], _AnySpan]) -> list[_AnySpan]:
    """Return the agents' spans around a span, innermost first."""
    above: dict[str, _AnySpan] = {}
    parent = by_id.get((span.trace_id, span.parent_id or ""))
    # Broken traces may hold circles.
    while parent is not None and parent.span_id not in above:
        above[parent.span_id] = parent
        parent = by_id.get((parent.trace_id, parent.parent_id or ""))
    return [each for each in above.values() if each.operation == AGENT]


def _program_id(span: _AnySpan) -> str:
    find = span.attributes.find
    return find("autellix.program.id", str) or find("gen_ai.conversation.id", str) or span.trace_id


def _call(
    span: _AnySpan,
    by_id: Mapping[tuple[str, str], _AnySpan],
    names: Mapping[tuple[str, str], str],
    options: LoadOptions,
) -> _ChatSpan | None:
    """Return the call of a span; None if its work is unknown."""
    agents = _agents(span, by_id)
    threads = [names[agent.trace_id, agent.span_id] for agent in agents] + [MAIN]
    prompt = [*_messages(span, "gen_ai.system_instructions"), *_messages(span, "gen_ai.input.messages")]
    answer = "".join(message.text for message in _messages(span, "gen_ai.output.messages"))
    answer = answer or span.attributes.find("gen_ai.output.text", str) or ""
    prompt_tokens, output_tokens = _tokens(span, PROMPT_TOKENS), _tokens(span, OUTPUT_TOKENS)
    if span.has_failed and not output_tokens and not answer:
        return None
    call = _ChatSpan(
        span=span,
        agents=agents,
        thread=span.attributes.find("autellix.thread.id", str) or threads[0],
        owner=threads[1] if agents else None,
        prompt=prompt,
        answer=answer,
        prompt_tokens=0,
        output_tokens=options.count_tokens(answer) if output_tokens is None else output_tokens,
        is_counted=prompt_tokens is None or output_tokens is None,
    )
    call.prompt_tokens = options.count_tokens(call.prompt_text) if prompt_tokens is None else prompt_tokens
    return call if call.prompt_tokens else None


def _tokens(span: _AnySpan, names: Iterable[str]) -> int | None:
    found = (span.attributes.count(name) for name in names if span.attributes.values.get(name) is not None)
    return next(found, None)


def _messages(span: _AnySpan, name: str) -> list[_RecordedMessage]:
    """Return an attribute of messages, or of the parts of one, which may be JSON in a string."""
    value = span.attributes.values.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise span.attributes.error(name, "is not JSON; expected a list of messages") from None
    if value is None:
        return []
    if not isinstance(value, list):
        raise span.attributes.error(name, f"is {value!r}; expected a list of messages")
    return [_message(item) for item in value]


def _message(item: object) -> _RecordedMessage:
    if not isinstance(item, dict):
        return _RecordedMessage("", str(item))
    text = _text(item.get("content", item.get("parts", item.get("text"))))
    # A call of a tool has no text.
    text += json.dumps(item["tool_calls"]) if item.get("tool_calls") else ""
    return _RecordedMessage(
        str(item.get("role", "system")), text or ("" if "role" in item else json.dumps(item))
    )


def _text(value: object) -> str:
    if isinstance(value, list):
        return "".join(_message(part).text for part in value)
    return "" if value is None else str(value)


def _join(calls: list[_ChatSpan], call: _ChatSpan) -> None:
    """Add a call to its program, with its parents."""
    call.id = len(calls)
    named = call.span.attributes.find("autellix.parent.ids", list)
    if named is None:
        call.parents = _latest(_waited_for(calls, call))
    else:
        call.parents = [
            each for each in calls if each.span.attributes.values.get("autellix.call.id") in named
        ]
    for parent in call.parents:
        call.ancestors |= parent.ancestors | 1 << parent.id
    calls.append(call)


def _waited_for(calls: Iterable[_ChatSpan], call: _ChatSpan) -> list[_ChatSpan]:
    """Return calls that had ended, and for which a call may have waited."""
    ended = [each for each in calls if each.had_ended(call.span.start_s)]
    answers = {message.text for message in call.prompt if message.role == "assistant"} - {""}
    own = [each for each in ended if each.answer in answers] or [
        each for each in ended if each.thread == call.thread
    ]
    called = [each for each in ended if each.owner == call.thread and each.thread != call.thread]
    return own + called or [each for each in ended if each.thread == call.owner]


def _latest(calls: Iterable[_ChatSpan]) -> list[_ChatSpan]:
    """Return calls without those that others of them waited for."""
    latest: list[_ChatSpan] = []
    ancestors = 0
    for call in sorted(calls, key=attrgetter("id"), reverse=True):
        if not ancestors >> call.id & 1:
            latest.append(call)
            ancestors |= call.ancestors | 1 << call.id
    return latest[::-1]


def _program(name: str, calls: list[_ChatSpan], origin_s: float, options: LoadOptions) -> ProgramTrace:
    first = calls[0]
    models = (call.span.attributes.find("gen_ai.request.model", str) for call in calls)
    outermost = first.agents[-1].attributes if first.agents else first.span.attributes
    return first.span.record.program(
        source=outermost.find("gen_ai.agent.name", str) or "otel",
        program_id=name,
        group=name,
        tokenizer=options.tokenizer if any(call.is_counted for call in calls) else "as recorded",
        models=tuple(dict.fromkeys(model for model in models if model)),
        system_prefix_tokens=min(_cached_tokens(first) or 0, first.prompt_tokens) or None,
        arrival_s=round(first.began_s - origin_s, 6),
        calls=tuple(_call_trace(call, calls) for call in calls),
    )


def _call_trace(call: _ChatSpan, calls: list[_ChatSpan]) -> CallTrace:
    began_s = calls[0].began_s
    ready_s = max((parent.span.end_s for parent in call.parents), default=began_s)
    prefix, shared_tokens = _prefix(call, calls)
    return CallTrace(
        id=call.id,
        parents=tuple(parent.id for parent in call.parents),
        thread=call.thread,
        prefill_tokens=call.prompt_tokens,
        decode_tokens=call.output_tokens,
        shared_prefix_tokens=shared_tokens,
        prefix_from=prefix.id if prefix is not None and shared_tokens else None,
        gap_before_s=round(max(0.0, call.span.start_s - ready_s), 6),
        kind="chain" if call.parents else "root",
        start_s=round(call.span.start_s - began_s, 6),
        latency_s=round(max(0.0, call.span.end_s - call.span.start_s), 6),
    )


def _prefix(call: _ChatSpan, calls: list[_ChatSpan]) -> tuple[_ChatSpan | None, int]:
    """Return the call whose prompt and answer a prompt repeats, and how many tokens of it."""
    before = [each for each in calls[: call.id] if each.thread == call.thread]
    ended = [each for each in before if each.had_ended(call.span.start_s)]
    # Of several that share as much, the first of these.
    candidates = [*ended[-1:], *call.parents[::-1], *(calls[:1] if call.id and call.prompt else [])]
    if not candidates:
        return None, 0
    prompt = call.prompt_text
    lengths = [common_length(each.context_text, prompt) for each in candidates]
    best = candidates[lengths.index(max(lengths))]
    cached_tokens = _cached_tokens(call)
    if cached_tokens is None:
        cached_tokens = call.prompt_tokens * max(lengths) // max(1, len(prompt))
    return best, min(cached_tokens, call.prompt_tokens, best.prompt_tokens + best.output_tokens)


def _cached_tokens(call: _ChatSpan) -> int | None:
    return _tokens(call.span, ("gen_ai.usage.cache_read.input_tokens",))
