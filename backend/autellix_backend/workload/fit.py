"""Bring program traces to the size of a small engine: scale their lengths, bound their contexts."""

from __future__ import annotations

from dataclasses import replace

from autellix_backend.workload.schema import CallTrace, ProgramTrace


def fit_program(
    program: ProgramTrace, *, length_scale: float, max_context_tokens: int, max_gap_s: float = 0.0
) -> ProgramTrace:
    """Multiply the new and generated tokens of each call by `length_scale`, within `max_context_tokens`.

    The call graph stays as it is. Every call generates at least one token and adds at least one. A call
    whose history would not fit starts over with its new tokens alone, as chat clients drop old turns.

    Raises:
        ValueError: if the scale is not above zero or the context has no room for two tokens.
    """
    if length_scale <= 0 or max_context_tokens < 2:
        raise ValueError(
            f"length_scale is {length_scale}, max_context_tokens {max_context_tokens}; too small"
        )
    fitted: list[CallTrace] = []
    for call in program.calls:
        fitted.append(_fit_call(call, fitted, length_scale, max_context_tokens, max_gap_s))
    return replace(program, calls=tuple(fitted))


def _fit_call(
    call: CallTrace, earlier: list[CallTrace], length_scale: float, max_context_tokens: int, max_gap_s: float
) -> CallTrace:
    decode_tokens = min(_scaled(call.decode_tokens, length_scale), max_context_tokens // 2)
    new_tokens = min(_scaled(call.new_tokens, length_scale), max_context_tokens - decode_tokens)
    shared_tokens, prefix_from = 0, call.prefix_from
    if prefix_from is not None:
        wanted_tokens = round(call.shared_prefix_tokens * length_scale)
        shared_tokens = min(wanted_tokens, earlier[prefix_from].context_tokens)
    if shared_tokens + new_tokens + decode_tokens > max_context_tokens:
        shared_tokens, prefix_from = 0, None
    return replace(
        call,
        prefill_tokens=shared_tokens + new_tokens,
        decode_tokens=decode_tokens,
        shared_prefix_tokens=shared_tokens,
        prefix_from=prefix_from,
        gap_before_s=min(call.gap_before_s or 0.0, max_gap_s),
    )


def _scaled(tokens: int, length_scale: float) -> int:
    return max(1, round(tokens * length_scale))
