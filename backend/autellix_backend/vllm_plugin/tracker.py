"""One engine's calls in plain data: feeds the scheduler machine and writes the accounts.

Nothing here knows vLLM. The machine's call id is the engine's request id, because the children of an `n > 1`
request share one call id; the caller's call id travels beside it into the account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.call import Call
from autellix_backend.core.machine import Machine
from autellix_backend.core.report import EngineReport
from autellix_backend.vllm_plugin.identity import CallIdentity
from autellix_backend.vllm_plugin.report_sender import ReportSender
from autellix_backend.vllm_plugin.settings import PluginSettings

__all__ = ["UNRANKED", "CallTracker", "Usage"]

PROGRAM_IDLE_S = 600.0
_EXPIRE_PERIOD_S = 30.0
_SEQUENCE_BITS = 56
_SIZE_BITS = 56
# Sizes are compared live by their microseconds.
_SIZE_UNITS_PER_S = 1e6
_SIZE_LIMIT = (1 << _SIZE_BITS) - 1
UNRANKED = 1 << (_SEQUENCE_BITS + _SIZE_BITS + 16)
"""A priority behind that of any tracked call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a call used by the time it left the engine."""

    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    is_aborted: bool


@dataclass(slots=True, kw_only=True)
class _Tracked:
    identity: CallIdentity
    arrival_step: int
    is_running: bool = False
    has_started: bool = False
    engine_steps: int = 0
    cached_tokens: int = 0


class CallTracker:
    """The calls inside one engine, from arrival to account."""

    def __init__(self, settings: PluginSettings) -> None:
        self.machine = Machine(settings.scheduler)
        self.sender = ReportSender(settings.report_socket)
        self.step = 0
        self._calls: dict[str, _Tracked] = {}
        self._places: dict[str, int] = {}
        self._next_expiry_s = 0.0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def is_running(self, request_id: str) -> bool:
        """Whether the call is in the engine's batch."""
        return self._calls[request_id].is_running

    def identity(self, request_id: str) -> CallIdentity:
        """Return who the call belongs to."""
        return self._calls[request_id].identity

    def priority(self, request_id: str) -> int:
        """Return the call's place as one number: smaller runs earlier.

        Those with a place among all tenants go before the rest, which have that of their queue.
        """
        place = self._places.get(request_id)
        if place is not None:
            return place
        level, size_s, sequence = self.machine.call(request_id).rank
        size = min(round(size_s * _SIZE_UNITS_PER_S), _SIZE_LIMIT)
        # A held call has a number below zero, which must not reach into the level.
        return (((level << _SIZE_BITS) | size) << _SEQUENCE_BITS) + sequence

    def arrive(
        self,
        request_id: str,
        identity: CallIdentity,
        now: float,
        *,
        prompt_tokens: int = 0,
        max_tokens: int = 0,
    ) -> None:
        """Take in a call; its tokens are its expected size where nobody tells that of its program."""
        expected_s = identity.expected_s
        if not self.machine.policy.sizes_programs:
            expected_s = self.machine.config.nominal_service_s(prompt_tokens, max_tokens)
        program_service_s = identity.program_service_s
        self.machine.arrive(
            Arrival(
                request_id,
                identity.program_id,
                service_s=identity.service_s if program_service_s is None else program_service_s,
                wait_s=identity.wait_s,
                inherited_s=identity.service_s,
                thread_id=identity.thread_id,
                expected_s=expected_s,
                tenant=identity.tenant,
                weight=identity.weight,
            ),
            now,
        )
        self._calls[request_id] = _Tracked(identity=identity, arrival_step=self.step)

    def start(self, request_id: str, now: float, cached_tokens: int) -> None:
        """Note that a waiting call entered the batch; the first entry says what the prefix cache saved."""
        call = self._calls[request_id]
        self.machine.start(request_id, now)
        call.is_running = True
        if not call.has_started:
            call.has_started = True
            call.cached_tokens = cached_tokens

    def preempt(self, request_id: str, now: float) -> None:
        """Note that a running call was preempted."""
        self.machine.preempt(request_id, now)
        self._calls[request_id].is_running = False

    def charge(self, scheduled_tokens: Mapping[str, int], cost_s: float, now: float) -> None:
        """Charge one executed step to every call that was in it, by time or by its tokens.

        A call that had several tokens in the step was reading its prompt; one with a single token, writing.
        """
        self.step += 1
        is_measured = self.machine.config.service == "measured"
        for request_id, tokens in scheduled_tokens.items():
            call = self._calls.get(request_id)
            if call is not None:
                call.engine_steps += 1
                if not is_measured:
                    cost_s = self.machine.config.nominal_service_s(
                        *((tokens, 0) if tokens > 1 else (0, tokens))
                    )
                self.machine.charge(request_id, cost_s, now, is_prefill=tokens > 1)

    def tick(self, now: float) -> list[str]:
        """Let time pass; return the calls whose level changed."""
        if now >= self._next_expiry_s:
            self._next_expiry_s = now + _EXPIRE_PERIOD_S
            self.machine.table.expire(now, PROGRAM_IDLE_S)
        return [change.call_id for change in self.machine.tick(now)]

    def place(self, order: Iterable[Call]) -> list[str]:
        """Give the calls that are next to run their places; return those whose place is another now."""
        old, self._places = self._places, {call.call_id: place for place, call in enumerate(order)}
        return [
            call_id for call_id in {**old, **self._places} if old.get(call_id) != self._places.get(call_id)
        ]

    def close(self, request_id: str, now: float, usage: Usage) -> EngineReport:
        """Close a call that finished or was aborted, and send its account."""
        call = self._calls.pop(request_id)
        self._places.pop(request_id, None)
        leave = self.machine.abort if usage.is_aborted else self.machine.finish
        record = leave(request_id, now)
        self._drop_program(request_id, call.identity)
        account = EngineReport.of(
            replace(record, call_id=call.identity.call_id),
            request_id=request_id,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=call.cached_tokens,
            arrival_step=call.arrival_step,
            finish_step=self.step,
            engine_steps=call.engine_steps,
            finish_reason=usage.finish_reason,
            dropped_records=self.sender.dropped_records,
        )
        if self.sender.is_enabled:
            self.sender.send(account.to_bytes())
        return account

    def _drop_program(self, request_id: str, identity: CallIdentity) -> None:
        """Forget a program at once if its totals are kept elsewhere or it was this one call."""
        is_own = identity.program_id == request_id
        if not (identity.is_told or is_own):
            return
        program = self.machine.table.get(identity.program_id)
        if program is not None and not program.active_calls:
            self.machine.table.end(identity.program_id)
