"""Builds the calls of one thread, each of which extends the prompt and answer of the last."""

from __future__ import annotations

from autellix_lab.workload.trace import CallTrace


class Chain:
    """The calls of a conversation whose whole history is sent each time."""

    def __init__(self) -> None:
        self.calls: list[CallTrace] = []

    def add(self, new_tokens: int, decode_tokens: int, kind: str, turn: int | None = None) -> None:
        """Append a call that adds `new_tokens` to the history and generates `decode_tokens`."""
        last = self.calls[-1] if self.calls else None
        history_tokens = last.context_tokens if last else 0
        self.calls.append(
            CallTrace(
                id=len(self.calls),
                parents=(last.id,) if last else (),
                thread="main",
                # An engine cannot run an empty prompt.
                prefill_tokens=max(1, history_tokens + new_tokens),
                decode_tokens=decode_tokens,
                shared_prefix_tokens=history_tokens,
                prefix_from=last.id if last else None,
                kind=kind if last else "root",
                turn=turn,
            )
        )
