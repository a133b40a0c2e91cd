"""The fake engine's calls, its behaviour and its recorded requests."""

from __future__ import annotations

import asyncio
import enum
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autellix_backend.reports.report import EngineReport
from autellix_wire import engine_args

MODEL_NAME = "autellix.fake-model"
_PROMPT_FIELDS = ("messages", "input", "prompt")


class Fault(enum.Enum):
    """A fault of a call."""

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
    UNREPORTED = "unreported"
    """Answer, and send no engine report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeBehaviour:
    """How the fake engine answers; replace `FakeEngine.behaviour` at any time."""

    output_tokens: int = 4
    """Length of an answer when the request sets no limit; also the most that is generated."""
    token_delay_s: float = 0.0
    gate: asyncio.Event | None = None
    """Answers begin once it is set; None: at once."""
    fault: Fault = Fault.NONE
    faulty_calls: int | None = None
    """Number of calls with the fault; None: all."""
    fault_shares: Mapping[Fault, float] = field(default_factory=dict)
    """Shares of the calls by fault, drawn from a seeded generator; replaces `fault`."""
    slow_s: float = 0.5
    error_status: int = 500
    error_message: str = "the fake engine was told to fail"
    extra_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields added to every answer and chunk, as future engines may."""
    make_tool_call_id: Callable[[], str] | None = None
    """Makes the id of a tool call for each answer to a call that offers tools; None: there are no calls."""
    message_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields added to the message of a chat completion, such as tool_calls."""
    health_status: int | None = 200
    """Status of the health path; None: no answer, as from a hung server."""
    models: tuple[str, ...] = (MODEL_NAME,)
    """The models that it lists."""
    sends_reports: bool = True
    service_s_per_token: float = 0.01
    cached_share: float = 0.0
    """The share of each prompt that it finds in its prefix cache."""
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
    """One call in progress."""

    request_id: str
    body: dict[str, Any]
    behaviour: FakeBehaviour
    planned_tokens: int
    arrival_step: int
    started_at: float = field(default_factory=time.monotonic)
    output_tokens: int = 0
    is_reported: bool = False
    tool_call_id: str | None = None
    """The id of the tool call in its answer."""
    response_id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")
    """The id of its answer, if that is a response."""

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
    def model(self) -> str:
        """The model that the request names."""
        return str(self.body.get("model", MODEL_NAME))

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(map(self.token, range(self.planned_tokens)))

    @property
    def prompt_tokens(self) -> int:
        """A stand-in for tokenizing: the words of the prompt."""
        source = next((self.body[name] for name in _PROMPT_FIELDS if name in self.body), "")
        return len(json.dumps(source).split())

    def usage(self) -> dict[str, int]:
        """Count the tokens as the OpenAI API does."""
        total = self.prompt_tokens + self.output_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": total,
        }

    @property
    def gateway(self) -> str:
        """The gateway that wants its report over the network."""
        return str((self.body.get("vllm_xargs") or {}).get(engine_args.GATEWAY, ""))

    def token(self, number: int) -> str:
        """Return one token of the answer."""
        return f"token{number} "

    def report(self, finish_step: int) -> EngineReport:
        """Return the report that the vLLM plugin would send."""
        xargs = self.body.get("vllm_xargs") or {}
        wait_s = self.behaviour.wait_s
        return EngineReport(
            call_id=xargs.get(engine_args.CALL, self.request_id),
            program_id=xargs.get(engine_args.PROGRAM, self.request_id),
            thread_id=xargs.get(engine_args.THREAD, "0"),
            request_id=self.request_id,
            arrival_s=self.started_at,
            finish_s=time.monotonic(),
            wait_s=wait_s,
            table_wait_s=wait_s,
            service_s=self.output_tokens * self.behaviour.service_s_per_token,
            inherited_service_s=float(xargs.get(engine_args.SERVICE_S, 0.0)),
            level=1,
            preemptions=0,
            demotions=0,
            promotions=0,
            is_aborted=not self.is_complete,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=int(self.prompt_tokens * self.behaviour.cached_share),
            arrival_step=self.arrival_step,
            finish_step=finish_step,
            engine_steps=self.output_tokens,
            finish_reason="length" if self.is_complete else "abort",
            dropped_records=0,
        )
