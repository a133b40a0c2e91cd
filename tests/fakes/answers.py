"""The fake engine's answers in each dialect of vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

from tests.fakes.call import FakeCall

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
RESPONSES_PATH = "/v1/responses"
MESSAGES_PATH = "/v1/messages"
EMBEDDINGS_PATH = "/v1/embeddings"

_CREATED = 1_700_000_000
_ARGUMENTS = '{"name": "notes.txt"}'


class FakeDialect(Protocol):
    """Builds the answers of one path."""

    def answer(self, call: FakeCall) -> dict[str, Any]:
        """Return the complete answer of a call that does not stream."""
        ...

    def opening(self, call: FakeCall) -> Iterator[bytes]:
        """Return the events before the first token."""
        ...

    def token(self, call: FakeCall, number: int) -> bytes:
        """Return the event of one token."""
        ...

    def closing(self, call: FakeCall) -> Iterator[bytes]:
        """Return the events after the last token."""
        ...


class _Choices:
    """Chat completions and completions: unnamed chunks that end with `data: [DONE]`."""

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._kind = "chat.completion" if is_chat else "text_completion"
        self._chunk_kind = "chat.completion.chunk" if is_chat else "text_completion"

    def answer(self, call: FakeCall) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        if self._is_chat:
            calls = {} if call.tool_call_id is None else {"tool_calls": [_function_call(call)]}
            fields = call.behaviour.message_fields
            choice["message"] = {"role": "assistant", "content": call.text, **calls, **fields}
        else:
            choice["text"] = call.text
        return self._envelope(call, self._kind, [choice]) | {"usage": call.usage()}

    def opening(self, call: FakeCall) -> Iterator[bytes]:
        return iter(())

    def token(self, call: FakeCall, number: int) -> bytes:
        is_last = number == call.planned_tokens - 1
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if is_last else None}
        if self._is_chat:
            role = {"role": "assistant"} if number == 0 else {}
            choice["delta"] = role | {"content": call.token(number)}
        else:
            choice["text"] = call.token(number)
        return _event(self._envelope(call, self._chunk_kind, [choice]))

    def closing(self, call: FakeCall) -> Iterator[bytes]:
        if self._is_chat and call.tool_call_id is not None:
            whole = _function_call(call)
            arguments = {"index": 0, "function": {"arguments": whole["function"]["arguments"]}}
            opening = whole | {"index": 0, "function": whole["function"] | {"arguments": ""}}
            for delta in (opening, arguments):
                choice = {"index": 0, "delta": {"tool_calls": [delta]}, "finish_reason": None}
                yield _event(self._envelope(call, self._chunk_kind, [choice]))
        if call.wants_usage:
            yield _event(self._envelope(call, self._chunk_kind, []) | {"usage": call.usage()})
        yield b"data: [DONE]\n\n"

    def _envelope(self, call: FakeCall, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": call.request_id,
            "object": kind,
            "created": _CREATED,
            "model": call.model,
            "choices": choices,
            **call.behaviour.extra_fields,
        }


class _Responses:
    """Responses: named and numbered events, the last of which holds the whole response."""

    def answer(self, call: FakeCall) -> dict[str, Any]:
        text = {"type": "output_text", "text": call.text, "annotations": []}
        message = {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed"}
        usage = _usage(call) | {
            "total_tokens": call.prompt_tokens + call.output_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        output = [message | {"content": [text]}]
        if call.tool_call_id is not None:
            ids = {"id": "fc_0", "call_id": call.tool_call_id}
            output.append({"type": "function_call", **ids, **_called(call)})
        return self._envelope(call, "completed", output) | {"usage": usage}

    def opening(self, call: FakeCall) -> Iterator[bytes]:
        yield self._event("created", 0, response=self._envelope(call, "in_progress", []))

    def token(self, call: FakeCall, number: int) -> bytes:
        place = {"item_id": "msg_0", "output_index": 0, "content_index": 0, "logprobs": []}
        return self._event("output_text.delta", number + 1, delta=call.token(number), **place)

    def closing(self, call: FakeCall) -> Iterator[bytes]:
        yield self._event("completed", call.planned_tokens + 1, response=self.answer(call))

    def _event(self, kind: str, number: int, **fields: Any) -> bytes:
        name = f"response.{kind}"
        return _event({"type": name, "sequence_number": number, **fields}, name)

    def _envelope(self, call: FakeCall, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": call.response_id,
            "object": "response",
            "created_at": _CREATED,
            "model": call.model,
            "status": status,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **call.behaviour.extra_fields,
        }


class _Messages:
    """Anthropic's messages: named events, ended by `message_stop`."""

    def answer(self, call: FakeCall) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": call.text}]
        if call.tool_call_id is not None:
            content.append(self._tool_use(call))
        return self._envelope(call, content, "max_tokens") | {"usage": _usage(call)}

    def opening(self, call: FakeCall) -> Iterator[bytes]:
        message = self._envelope(call, [], None) | {"usage": _usage(call) | {"output_tokens": 0}}
        yield self._event("message_start", message=message)
        yield self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def token(self, call: FakeCall, number: int) -> bytes:
        delta = {"type": "text_delta", "text": call.token(number)}
        return self._event("content_block_delta", index=0, delta=delta)

    def closing(self, call: FakeCall) -> Iterator[bytes]:
        yield self._event("content_block_stop", index=0)
        if call.tool_call_id is not None:
            block = self._tool_use(call) | {"input": {}}
            yield self._event("content_block_start", index=1, content_block=block)
            delta = {"type": "input_json_delta", "partial_json": _ARGUMENTS}
            yield self._event("content_block_delta", index=1, delta=delta)
            yield self._event("content_block_stop", index=1)
        yield self._event("message_delta", delta={"stop_reason": "max_tokens"}, usage=_usage(call))
        yield self._event("message_stop")

    def _tool_use(self, call: FakeCall) -> dict[str, Any]:
        used = {"name": _called(call)["name"], "input": json.loads(_ARGUMENTS)}
        return {"type": "tool_use", "id": call.tool_call_id, **used}

    def _event(self, kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, **fields}, kind)

    def _envelope(
        self, call: FakeCall, content: list[dict[str, Any]], stop_reason: str | None
    ) -> dict[str, Any]:
        return {
            "id": call.request_id,
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            **call.behaviour.extra_fields,
        }


DIALECTS: dict[str, FakeDialect] = {
    CHAT_PATH: _Choices(is_chat=True),
    COMPLETIONS_PATH: _Choices(is_chat=False),
    RESPONSES_PATH: _Responses(),
    MESSAGES_PATH: _Messages(),
}


def _called(call: FakeCall) -> dict[str, str]:
    """Return the first tool of a request, in any dialect, and the arguments that it is called with."""
    tool = call.body["tools"][0]
    return {"name": (tool.get("function") or tool)["name"], "arguments": _ARGUMENTS}


def _function_call(call: FakeCall) -> dict[str, Any]:
    return {"id": call.tool_call_id, "type": "function", "function": _called(call)}


def _usage(call: FakeCall) -> dict[str, Any]:
    return {"input_tokens": call.prompt_tokens, "output_tokens": call.output_tokens}


def _event(fields: dict[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(fields)}\n\n".encode()
