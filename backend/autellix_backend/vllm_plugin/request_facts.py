"""Facts of vLLM's requests; nothing here changes one."""

from __future__ import annotations

from vllm.v1.request import Request, RequestStatus

from autellix_backend.vllm_plugin.tracker import RequestUsage

__all__ = ["cached_tokens_of", "is_last_token_in_flight", "usage_of"]


def cached_tokens_of(request: Request) -> int:
    """Return how many tokens of its prompt a request found in the prefix cache."""
    stats = getattr(request, "prefill_stats", None)
    cached = getattr(stats, "num_cached_tokens", None)
    if cached is None:
        cached = getattr(request, "num_cached_tokens", 0)
    return max(0, int(cached or 0))


def usage_of(request: Request) -> RequestUsage:
    """Return the usage of a request that leaves."""
    reason = request.get_finished_reason()
    return RequestUsage(
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        finish_reason=str(reason) if reason is not None else "unknown",
        is_aborted=request.status in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR),
    )


def is_last_token_in_flight(request: Request, max_model_len: int) -> bool:
    """Whether a running request is about to leave by itself, with nothing left to compute."""
    placeholders = request.num_output_placeholders
    if not placeholders:
        return False
    # The same bound by which vLLM knows that no further step is needed.
    known_tokens = request.num_computed_tokens + 2 - placeholders
    return bool(known_tokens >= min(request.num_prompt_tokens + request.max_tokens, max_model_len))
