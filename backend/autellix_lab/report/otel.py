"""Programs as OpenTelemetry traces, which inference-perf and GuideLLM replay.

A program is a file of spans: one for the program, and one below it for each call, with messages and the
attributes of a gateway's own spans (`autellix_backend.observe.tracing`). Times count from 1970 plus the
program's arrival. `autellix_lab.workload.loaders.otel` reads them back.

Traces hold no text, so messages are common words, one for a token: what a chat template adds comes on top. A
call that waits for another shows by that call's answer among its messages, if its prompt has room for it. An
answer is repeated as a whole: a prefix that ends inside one includes it, if the prompt has room, else ends
before it. Kinds, turns and sample groups are not in the format.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from autellix_lab.bench.prompts import random_words
from autellix_lab.report.weka import MODEL
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import CallTrace, ProgramTrace, TraceError

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _SyntheticMessage:
    role: str
    words: tuple[str, ...]


_Conversation = list[_SyntheticMessage]


def otel_trace(program: ProgramTrace) -> dict[str, Any] | None:
    """Return a program as a file of spans; None if its trace lacks times of calls.

    Raises:
        TraceError: if there is no date for its arrival.
    """
    times_s: list[tuple[float, float]] = []
    for call in program.calls:
        if call.start_s is None or call.latency_s is None:
            return None
        times_s.append((call.start_s, call.start_s + call.latency_s))
    begin_s, end_s = min(0.0, *(start for start, _ in times_s)), max(end for _, end in times_s)
    spans = [_span(program, "invoke_agent", None, begin_s, end_s)]
    for call, messages, (start_s, finish_s) in zip(
        program.calls, _conversations(program), times_s, strict=True
    ):
        span = _span(program, "chat", call, start_s, finish_s)
        span["attributes"] |= _call_attributes(program, call, messages)
        spans.append(span)
    return {
        "trace_id": spans[0]["trace_id"],
        "session_id": program.program_id,
        "span_count": len(spans),
        "spans": spans,
    }


def _span(
    program: ProgramTrace, operation: str, call: CallTrace | None, start_s: float, end_s: float
) -> dict[str, Any]:
    # The program's span is number 1, since a number of zeros is invalid.
    parent_id, number = (None, 1) if call is None else (f"{1:016x}", call.id + 2)
    name = program.source if call is None else _model(program)
    return {
        "trace_id": hashlib.sha256(program.program_id.encode()).hexdigest()[:32],
        "span_id": f"{number:016x}",
        "parent_span_id": parent_id,
        "name": f"{operation} {name}",
        "kind": "SPAN_KIND_CLIENT",
        "start_time": _date(program, start_s),
        "end_time": _date(program, end_s),
        "attributes": {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "autellix",
            "gen_ai.agent.name": program.source,
            "autellix.program.id": program.program_id,
        },
        "resource_attributes": {"service.name": "autellix"},
        "status": {"code": 1, "message": ""},
    }


def _date(program: ProgramTrace, time_s: float) -> str:
    try:
        date = _EPOCH + timedelta(seconds=(program.arrival_s or 0.0) + time_s)
    except OverflowError:
        problem = f"is {program.arrival_s} in {program.program_id!r}; expected a time that has a date"
        raise TraceError("arrival_s", problem) from None
    return date.isoformat(timespec="microseconds")


def _model(program: ProgramTrace) -> str:
    return program.models[0] if program.models else MODEL


def _call_attributes(program: ProgramTrace, call: CallTrace, messages: _Conversation) -> dict[str, Any]:
    *prompt, answer = map(_genai_message, messages)
    prefix = None if call.id else system_prefix(program)
    return {
        "gen_ai.request.model": _model(program),
        "gen_ai.usage.input_tokens": call.prefill_tokens,
        "gen_ai.usage.cache_read.input_tokens": prefix.length if prefix else call.shared_prefix_tokens,
        "gen_ai.usage.output_tokens": call.decode_tokens,
        "autellix.call.id": str(call.id),
        "autellix.thread.id": call.thread,
        "autellix.parent.ids": [str(parent) for parent in call.parents],
        "gen_ai.input.messages": json.dumps(prompt),
        # An empty answer would be found in every prompt.
        **({"gen_ai.output.messages": json.dumps([answer])} if call.decode_tokens else {}),
    }


def _genai_message(message: _SyntheticMessage) -> dict[str, Any]:
    return {"role": message.role, "parts": [{"type": "text", "content": " ".join(message.words)}]}


def _conversations(program: ProgramTrace) -> list[_Conversation]:
    """Return each call's prompt and, as the last message, its answer."""
    chance = random.Random(program.program_id)
    contexts: list[_Conversation] = []
    for call in program.calls:
        messages = _beginning(program, call, contexts)
        for parent in call.parents:
            _add_answer(messages, contexts[parent][-1], call.prefill_tokens, chance)
        _add_words(messages, call.prefill_tokens - _length(messages), chance)
        contexts.append([*messages, _SyntheticMessage(ASSISTANT, _words(chance, call.decode_tokens))])
    return contexts


def _beginning(program: ProgramTrace, call: CallTrace, contexts: list[_Conversation]) -> _Conversation:
    """Return what a prompt repeats of an earlier call, or the program's system prefix."""
    if call.prefix_from is not None:
        return _repeated(contexts[call.prefix_from], call.shared_prefix_tokens, call.prefill_tokens)
    prefix = None if call.id else system_prefix(program)
    if prefix is None:
        return []
    # At least one word is left for the user: templates want one.
    length = min(prefix.length, call.prefill_tokens - 1)
    return [_SyntheticMessage(SYSTEM, _words(random.Random(prefix.key), prefix.length)[:length])]


def _repeated(context: _Conversation, shared_tokens: int, prefill_tokens: int) -> _Conversation:
    messages: _Conversation = []
    for message in context:
        left = shared_tokens - _length(messages)
        if left <= 0 or not message.words:
            break
        if message.role != ASSISTANT:
            messages.append(_SyntheticMessage(message.role, message.words[:left]))
        elif _length(messages) + len(message.words) <= prefill_tokens:
            messages.append(message)
        else:
            break
    return messages


def _add_answer(
    messages: _Conversation, answer: _SyntheticMessage, prefill_tokens: int, chance: random.Random
) -> None:
    """Add a parent's answer, after a word of the user's where roles have to alternate."""
    if answer in messages or not answer.words:
        return
    words_before = 0 if messages and messages[-1].role == USER else 1
    # A last word is the user's too.
    if _length(messages) + words_before + len(answer.words) < prefill_tokens:
        _add_words(messages, words_before, chance)
        messages.append(answer)


def _add_words(messages: _Conversation, count: int, chance: random.Random) -> None:
    """Add words of the user's."""
    words = _words(chance, count)
    if words and messages and messages[-1].role == USER:
        messages[-1] = _SyntheticMessage(USER, messages[-1].words + words)
    elif words:
        messages.append(_SyntheticMessage(USER, words))


def _words(chance: random.Random, count: int) -> tuple[str, ...]:
    return tuple(random_words(chance, count))


def _length(messages: Sequence[_SyntheticMessage]) -> int:
    return sum(len(message.words) for message in messages)
