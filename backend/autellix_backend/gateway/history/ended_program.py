"""An ended program as plain data."""

from __future__ import annotations

import msgspec

from autellix_backend.observe.settled_call import SettledCall

CALL_BYTES = 600
"""Approximate memory of a call without its texts."""
RUN_BYTES = 104
"""Memory of one of its runs: a pair of floats."""


class EndedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A settled call; unknown values are None."""

    call_id: str
    thread_id: str
    parents: tuple[str, ...] | None = None
    tools: tuple[tuple[str, float], ...] = ()
    """Tools that ran at the client before it: name, seconds."""
    engine: str
    outcome: str
    start_s: float
    """Its arrival, counted from its program's first arrival."""
    finish_s: float
    first_token_s: float | None = None
    """From its arrival to the first bytes of a streamed answer."""
    wait_s: float = 0.0
    inactive_s: float = 0.0
    """The part of its waiting during which its program was inactive."""
    service_s: float = 0.0
    runs: tuple[tuple[float, float], ...] = ()
    """When it got and lost its slot, from its arrival; empty if its engine did not report that."""
    prefilled_s: float | None = None
    """From its arrival to the end of its prefill."""
    level: int | None = None
    preemptions: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    is_estimated: bool = False

    @property
    def size_bytes(self) -> int:
        """Approximate memory."""
        texts = (self.call_id, self.thread_id, *(self.parents or ()), *(tool for tool, _ in self.tools))
        return CALL_BYTES + sum(map(len, texts)) + RUN_BYTES * len(self.runs)


class EndedProgram(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program from its first arrival to its last answer; times of calls count from the first arrival."""

    program_id: str
    """As the backend knows it."""
    tenant: str = ""
    name: str | None = None
    owner: str | None = None
    """The owner of its session, where identity is strict."""
    began_at_s: float
    """The arrival of its first call, seconds since 1970."""
    ended_at_s: float
    """When it left the process table, seconds since 1970."""
    calls: tuple[EndedCall, ...]
    """In the order of their arrival."""
    left_out: int = 0
    """Calls that were dropped to bound memory."""

    @property
    def duration_s(self) -> float:
        """From its first arrival to its last answer."""
        return max((call.finish_s for call in self.calls), default=0.0)

    @property
    def size_bytes(self) -> int:
        """Approximate memory."""
        return CALL_BYTES + len(self.program_id) + sum(call.size_bytes for call in self.calls)


def ended_call(settled: SettledCall, program_start_s: float) -> EndedCall:
    """Return the record of a settled call whose program began at `program_start_s`."""
    receipt, usage, finish_s = settled.receipt, settled.answer_usage, settled.settled_s - program_start_s
    return EndedCall(
        call_id=settled.start.call_id,
        thread_id=settled.start.thread_id,
        parents=settled.start.parents,
        tools=settled.start.interceptions,
        engine=settled.engine,
        outcome=settled.outcome.value,
        start_s=max(0.0, finish_s - settled.duration_s),
        finish_s=finish_s,
        first_token_s=settled.first_token_s,
        wait_s=receipt.wait_s,
        inactive_s=receipt.inactive_s,
        service_s=receipt.service_s,
        runs=settled.runs,
        prefilled_s=settled.prefilled_s,
        level=receipt.level,
        preemptions=receipt.preemptions or 0,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
        is_estimated=receipt.estimated,
    )
