"""Makes the canned answers of the recording backend: whole ones and streams, of each endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def stream_of(path: str, message: dict[str, Any], receipt: Mapping[str, Any] | None) -> bytes:
    """Return the stream of a path's endpoint, with a receipt before its last event, as a gateway sends it."""
    if path.endswith("/chat/completions"):
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in _chat_chunks(message)] + [DONE]
    elif path.endswith("/responses"):
        events = [_named(event) for event in _response_events(answer_of(path, message))]
    elif path.endswith("/messages"):
        events = [_named(event) for event in _message_events(answer_of(path, message))]
    else:
        events = [f"data: {json.dumps(answer_of(path, message))}\n\n", DONE]
    if receipt is not None:
        events.insert(-1, f": autellix {json.dumps(receipt)}\n\n")
    return "".join(events).encode()


DONE = "data: [DONE]\n\n"


def _named(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def _finish(message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _chat_chunks(message: dict[str, Any]) -> list[dict[str, Any]]:
    text = {name: value for name, value in message.items() if name != "tool_calls"}
    # A chunk for each, as of engines: LlamaIndex reads one tool call of a chunk.
    calls = [
        {"tool_calls": [{"index": index, **call}]}
        for index, call in enumerate(message.get("tool_calls") or ())
    ]
    choices: list[list[dict[str, Any]]] = [
        [{"index": 0, "delta": delta, "finish_reason": None}] for delta in (text, *calls)
    ]
    choices.append([{"index": 0, "delta": {}, "finish_reason": _finish(message)}])
    shared = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "recording"}
    return [{**shared, "choices": choice} for choice in choices]


def _response_events(answer: dict[str, Any]) -> list[dict[str, Any]]:
    item = answer["output"][0]
    part = item["content"][0]
    place = {"output_index": 0, "content_index": 0, "item_id": item["id"]}
    started = {**answer, "status": "in_progress", "output": [], "usage": None}
    empty = {**item, "status": "in_progress", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": empty},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []},
        {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": answer},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _message_events(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = answer["content"][0]["text"]
    yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    yield {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": answer["usage"]}
    yield {"type": "message_stop"}


def answer_of(path: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a path's endpoint."""
    text = message.get("content") or ""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    shared: dict[str, Any] = {"id": "answer-1", "created": 1, "model": "recording", "usage": usage}
    if path.endswith("/embeddings"):
        embedding = {"object": "embedding", "index": 0, "embedding": [0.0, 1.0]}
        return {**shared, "object": "list", "data": [embedding]}
    if path.endswith("/responses"):
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": "m-1", "role": "assistant", "status": "completed", "content": [part]}
        details = {
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        state = {"object": "response", "created_at": 1, "status": "completed", "output": [item]}
        tokens = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details}
        return {**shared, **settings, **state, "usage": tokens}
    if path.endswith("/messages"):
        content = [{"type": "text", "text": text}]
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        tokens = {"input_tokens": 1, "output_tokens": 1}
        kind = {"id": "m-1", "type": "message", "role": "assistant", "model": "recording"}
        return {**kind, **end, "content": content, "usage": tokens}
    if path.endswith("/chat/completions"):
        choice = {"index": 0, "finish_reason": _finish(message), "message": message}
        return {**shared, "object": "chat.completion", "choices": [choice]}
    choice = {"index": 0, "finish_reason": "stop", "text": text, "logprobs": None}
    return {**shared, "object": "text_completion", "choices": [choice]}
