"""A scripted turn as each dialect answers it, whole and as a stream of events."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.fakes.agent_turns import ScriptedCall, ScriptedTurn
from tests.fakes.answers import CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH

_CREATED = 1_700_000_000
_OUTPUT_TOKENS = 20


class AgentChat:
    """Chat completions."""

    def answer(self, body: Mapping[str, Any], turn: ScriptedTurn, prompt_tokens: int) -> dict[str, Any]:
        """Return the whole answer."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.calls:
            message["tool_calls"] = [self._call(call, call.arguments_json) for call in turn.calls]
        choice = {"index": 0, "message": message, "finish_reason": self._finish(turn), "logprobs": None}
        answer = self._envelope(body, "chat.completion", [choice])
        return answer | {"usage": self._usage(prompt_tokens)}

    def events(self, body: Mapping[str, Any], turn: ScriptedTurn, prompt_tokens: int) -> Iterator[bytes]:
        """Return the same as chunks."""
        head = self._envelope(body, "chat.completion.chunk", [])

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return _event(head | {"choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        for word in _words(turn.text):
            yield chunk({"content": word})
        for index, call in enumerate(turn.calls):
            yield chunk({"tool_calls": [{"index": index, **self._call(call, "")}]})
            arguments = {"index": index, "function": {"arguments": call.arguments_json}}
            yield chunk({"tool_calls": [arguments]})
        yield chunk({}, self._finish(turn))
        if (body.get("stream_options") or {}).get("include_usage"):
            yield _event(head | {"usage": self._usage(prompt_tokens)})
        yield b"data: [DONE]\n\n"

    def _envelope(self, body: Mapping[str, Any], kind: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": kind,
            "created": _CREATED,
            "model": body.get("model", ""),
            "choices": choices,
        }

    def _call(self, call: ScriptedCall, arguments: str) -> dict[str, Any]:
        function = {"name": call.tool.name, "arguments": arguments}
        return {"id": f"call_{call.id}", "type": "function", "function": function}

    def _finish(self, turn: ScriptedTurn) -> str:
        return "tool_calls" if turn.calls else "stop"

    def _usage(self, prompt_tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": _OUTPUT_TOKENS,
            "total_tokens": prompt_tokens + _OUTPUT_TOKENS,
        }


class AgentResponses:
    """Responses."""

    def answer(self, body: Mapping[str, Any], turn: ScriptedTurn, prompt_tokens: int) -> dict[str, Any]:
        """Return the whole answer."""
        return self._envelope(body, "completed", self._items(turn)) | {"usage": self._usage(prompt_tokens)}

    def events(self, body: Mapping[str, Any], turn: ScriptedTurn, prompt_tokens: int) -> Iterator[bytes]:
        """Return the same as numbered events."""
        answer = self.answer(body, turn, prompt_tokens)
        begun = answer | {"status": "in_progress", "output": [], "usage": None}
        events: list[tuple[str, dict[str, Any]]] = [
            ("created", {"response": begun}),
            ("in_progress", {"response": begun}),
        ]
        for index, item in enumerate(answer["output"]):
            events += self._item_events(index, item)
        events.append(("completed", {"response": answer}))
        for number, (kind, fields) in enumerate(events):
            name = f"response.{kind}"
            yield _event({"type": name, "sequence_number": number, **fields}, name)

    def _item_events(self, index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            [part] = item["content"]
            in_part = place | {"content_index": 0}
            yield "output_item.added", place | {"item": item | {"content": [], "status": "in_progress"}}
            yield "content_part.added", in_part | {"part": part | {"text": ""}}
            for word in _words(part["text"]):
                yield "output_text.delta", in_part | {"delta": word, "logprobs": []}
            yield "output_text.done", in_part | {"text": part["text"], "logprobs": []}
            yield "content_part.done", in_part | {"part": part}
        else:
            yield "output_item.added", place | {"item": item | {"arguments": "", "status": "in_progress"}}
            yield "function_call_arguments.delta", place | {"delta": item["arguments"]}
            yield (
                "function_call_arguments.done",
                place | {"arguments": item["arguments"], "name": item["name"]},
            )
        yield "output_item.done", place | {"item": item}

    def _items(self, turn: ScriptedTurn) -> list[dict[str, Any]]:
        part = {"type": "output_text", "text": turn.text, "annotations": []}
        head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
        calls = [
            {
                "id": f"fc_{call.id}",
                "type": "function_call",
                "call_id": f"call_{call.id}",
                "name": call.tool.name,
                "arguments": call.arguments_json,
                "status": "completed",
                **({"namespace": call.tool.namespace} if call.tool.namespace else {}),
            }
            for call in turn.calls
        ]
        return [head | {"status": "completed", "content": [part]}, *calls]

    def _envelope(
        self, body: Mapping[str, Any], status: str, output: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": _CREATED,
            "model": body.get("model", ""),
            "status": status,
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
        }

    def _usage(self, prompt_tokens: int) -> dict[str, Any]:
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": _OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + _OUTPUT_TOKENS,
        }


class AgentMessages:
    """Anthropic's messages."""

    def answer(self, body: Mapping[str, Any], turn: ScriptedTurn, prompt_tokens: int) -> dict[str, Any]:
        """Return the whole answer."""
        calls = [
            {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.tool.name, "input": call.arguments}
            for call in turn.calls
        ]
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", ""),
            "content": [{"type": "text", "text": turn.text}, *calls],
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": _OUTPUT_TOKENS},
        }

    def events(self, body: Mapping[str, Any], turn: ScriptedTurn, prompt_tokens: int) -> Iterator[bytes]:
        """Return the same as named events; as Anthropic's own, only the first tells of the prompt."""
        answer = self.answer(body, turn, prompt_tokens)
        usage = {"input_tokens": prompt_tokens, "output_tokens": 1}
        yield self._event(
            "message_start", message=answer | {"content": [], "stop_reason": None, "usage": usage}
        )
        for index, block in enumerate(answer["content"]):
            is_text = block["type"] == "text"
            empty: dict[str, object] = {"text": ""} if is_text else {"input": {}}
            yield self._event("content_block_start", index=index, content_block=block | empty)
            texts = _words(block["text"]) if is_text else [json.dumps(block["input"])]
            for text in texts:
                delta = {"type": "text_delta", "text": text} if is_text else _partial_json(text)
                yield self._event("content_block_delta", index=index, delta=delta)
            yield self._event("content_block_stop", index=index)
        end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        yield self._event("message_delta", delta=end, usage={"output_tokens": _OUTPUT_TOKENS})
        yield self._event("message_stop")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, **fields}, kind)


AGENT_DIALECTS: Mapping[str, AgentChat | AgentResponses | AgentMessages] = {
    CHAT_PATH: AgentChat(),
    RESPONSES_PATH: AgentResponses(),
    MESSAGES_PATH: AgentMessages(),
}


def _partial_json(text: str) -> dict[str, str]:
    return {"type": "input_json_delta", "partial_json": text}


def _words(text: str) -> list[str]:
    return [f"{word} " for word in text.split()]


def _event(fields: Mapping[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(fields)}\n\n".encode()
