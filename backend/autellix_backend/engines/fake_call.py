"""The fake engine's calls: how they are to be answered, what arrived, and the answers' bodies."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autellix_backend.core.accounting import CallAccount

MODEL_NAME = "autellix.fake-model"


class Fault(enum.Enum):
    """What goes wrong with a call."""

    NONE = "none"
    ERROR = "error"
    """Answer `error_status` with an OpenAI error body."""
    RESET_BEFORE_FIRST_BYTE = "reset-before-first-byte"
    RESET_MID_STREAM = "reset-mid-stream"
    """Send half of the answer, then reset the connection."""
    HANG = "hang"
    """Never answer."""
    SLOW = "slow"
    """Begin after `slow_s`."""
    UNACCOUNTED = "unaccounted"
    """Answer, and send no account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeBehaviour:
    """How the fake engine answers; replace `FakeEngine.behaviour` at any time."""

    output_tokens: int = 4
    """Length of an answer when the request sets no limit; also the most that is generated."""
    token_delay_s: float = 0.0
    fault: Fault = Fault.NONE
    faulty_calls: int | None = None
    """How many calls suffer the fault; None: all."""
    fault_shares: Mapping[Fault, float] = field(default_factory=dict)
    """What share of the calls suffers which fault, drawn from a seeded generator; replaces `fault`."""
    slow_s: float = 0.5
    error_status: int = 500
    error_message: str = "the fake engine was told to fail"
    extra_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields added to every answer and chunk, as future engines may."""
    message_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields added to the message of a chat completion, such as tool_calls."""
    health_status: int | None = 200
    """What the health path answers; None: nothing, as a hung server."""
    sends_accounts: bool = True
    service_s_per_token: float = 0.01
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Header names in lower case."""
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    @property
    def xargs(self) -> dict[str, Any]:
        """The `vllm_xargs` of the body, empty when there are none."""
        found: dict[str, Any] = self.json.get("vllm_xargs") or {}
        return found


@dataclass(slots=True)
class FakeCall:
    """One call that is being answered."""

    request_id: str
    body: dict[str, Any]
    is_chat: bool
    behaviour: FakeBehaviour
    planned_tokens: int
    arrival_step: int
    started_at: float = field(default_factory=time.monotonic)
    output_tokens: int = 0
    is_accounted: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all tokens are generated."""
        return self.output_tokens >= self.planned_tokens

    @property
    def is_streaming(self) -> bool:
        """Whether the client asked for a stream."""
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for usage at the end of the stream."""
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    @property
    def chunk_kind(self) -> str:
        """The `object` of a streamed chunk."""
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    @property
    def prompt_tokens(self) -> int:
        """A stand-in for tokenizing: the words of the prompt."""
        source = self.body.get("messages") if self.is_chat else self.body.get("prompt", "")
        return len(json.dumps(source).split())

    def usage(self) -> dict[str, int]:
        """Count the tokens as the OpenAI API does."""
        total = self.prompt_tokens + self.output_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": total,
        }

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Wrap choices into an answer or a chunk."""
        return {
            "id": self.request_id,
            "object": kind,
            "created": 1_700_000_000,
            "model": self.body.get("model", MODEL_NAME),
            "choices": choices,
            **self.behaviour.extra_fields,
        }

    def answer(self) -> dict[str, Any]:
        """Build the complete answer of a call that does not stream."""
        text = "".join(map(_token, range(self.planned_tokens)))
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": text, **self.behaviour.message_fields}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self.envelope(kind, [choice]) | {"usage": self.usage()}

    def chunk(self, number: int) -> dict[str, Any]:
        """Build the chunk of one token."""
        is_last = number == self.planned_tokens - 1
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if is_last else None}
        if self.is_chat:
            role = {"role": "assistant"} if number == 0 else {}
            choice["delta"] = role | {"content": _token(number)}
        else:
            choice["text"] = _token(number)
        return self.envelope(self.chunk_kind, [choice])

    def account(self, finish_step: int) -> CallAccount:
        """Build the record that the vLLM plugin would send."""
        xargs = self.body.get("vllm_xargs") or {}
        wait_s = self.behaviour.wait_s
        return CallAccount(
            call_id=xargs.get("autellix_call", self.request_id),
            program_id=xargs.get("autellix_program", self.request_id),
            thread_id=xargs.get("autellix_thread", "0"),
            request_id=self.request_id,
            arrival_s=self.started_at,
            finish_s=time.monotonic(),
            wait_s=wait_s,
            table_wait_s=wait_s,
            service_s=self.output_tokens * self.behaviour.service_s_per_token,
            inherited_service_s=float(xargs.get("autellix_service_s", 0.0)),
            level=1,
            preemptions=0,
            demotions=0,
            promotions=0,
            is_aborted=not self.is_complete,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=0,
            arrival_step=self.arrival_step,
            finish_step=finish_step,
            engine_steps=self.output_tokens,
            finish_reason="length" if self.is_complete else "abort",
            dropped_records=0,
        )


def _token(number: int) -> str:
    return f"token{number} "
