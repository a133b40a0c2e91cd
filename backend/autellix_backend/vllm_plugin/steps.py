"""The steps under way, the time that each is charged, and what it computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """The tokens that one step computed for the requests in it: each was either prefilled or decoded."""

    prefilled: Mapping[str, int] = field(default_factory=dict)
    """Tokens that were known before the step, by request: several, since each decode step begins with one."""
    decoded: Mapping[str, int] = field(default_factory=dict)
    """New tokens by request; of drafts, those that were accepted."""

    @classmethod
    def of(cls, output: Any, results: Any) -> StepTokens:
        """Read the tokens of an executed step.

        Args:
            output: vLLM's scheduler output, with the drafts that it scheduled for verification.
            results: The model runner's output, with the tokens that it sampled.
        """
        drafts, tokens = output.scheduled_spec_decode_tokens, output.num_scheduled_tokens
        if not drafts:
            if output.total_num_scheduled_tokens == len(tokens):
                # In most steps every request has one token, and decodes.
                return cls(decoded=tokens)
            prefilled = {request_id: scheduled for request_id, scheduled in tokens.items() if scheduled > 1}
            decoded = tokens.copy()
            for request_id in prefilled:
                del decoded[request_id]
            return cls(prefilled=prefilled, decoded=decoded)
        prefilled, decoded = {}, {}
        for request_id, scheduled in tokens.items():
            known = scheduled - len(drafts.get(request_id, ()))
            if known > 1:
                prefilled[request_id] = known
            elif known == scheduled:
                decoded[request_id] = 1
            else:
                decoded[request_id] = len(results.sampled_token_ids[results.req_id_to_index[request_id]])
        return cls(prefilled=prefilled, decoded=decoded)


class StepTimes:
    """Pipelined steps overlap: each is charged from where the previous one ended."""

    def __init__(self) -> None:
        self._started: deque[tuple[Any, float]] = deque()
        self._last_end_s = 0.0

    def __len__(self) -> int:
        """Return the number of steps under way."""
        return len(self._started)

    def count_with(self, request_id: str) -> int:
        """Return the number of steps under way that a request is part of."""
        return sum(request_id in output.num_scheduled_tokens for output, _ in self._started)

    def start(self, output: Any, now: float) -> None:
        """Add a step by its scheduler output."""
        self._started.append((output, now))

    def end(self, output: Any, now: float) -> float:
        """Remove an executed step and those before it; return its cost (s)."""
        cost_s = now - max(self._pop(output, now), self._last_end_s)
        self._last_end_s = now
        return cost_s

    def _pop(self, output: Any, default_s: float) -> float:
        while self._started:
            scheduled, started_s = self._started.popleft()
            if scheduled is output:
                return started_s
        return default_s
