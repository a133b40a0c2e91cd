"""The receipt of a call: its cost, which the gateway returns with the answer."""

from __future__ import annotations

import msgspec

DIGITS = 6
"""Decimals of its seconds: microseconds."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a call; None where only the engine could know and did not report."""

    call_id: str
    program_id: str
    wait_s: float
    service_s: float
    preemptions: int | None = None
    demotions: int | None = None
    promotions: int | None = None
    level: int | None = None
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    arrival_step: int | None = None
    finish_step: int | None = None
    engine_steps: int | None = None
    estimated: bool = False
    inactive_s: float = 0.0
    """The part of its waiting in which its program waited for KV memory."""

    def spliced_into(self, content: bytes) -> bytes:
        """Return a JSON object with the receipt as its last field; anything else stays as it is."""
        end = content.rstrip()
        if not (end.startswith(b"{") and end.endswith(b"}")):
            return content
        head = end[:-1]
        comma = b"" if head.rstrip().endswith(b"{") else b","
        return head + comma + b'"autellix":' + self._encoded() + b"}"

    def _encoded(self) -> bytes:
        rounded = msgspec.structs.replace(
            self,
            wait_s=round(self.wait_s, DIGITS),
            service_s=round(self.service_s, DIGITS),
            inactive_s=round(self.inactive_s, DIGITS),
        )
        return msgspec.json.encode(rounded)

    def comment(self) -> bytes:
        """Return the receipt as an SSE comment."""
        return b": autellix " + self._encoded() + b"\n\n"
