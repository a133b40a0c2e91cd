"""Claude Code's billing line, with which its system prompt begins.

It differs from task to task, and vLLM drops it from messages. So no hash may include it, or the tasks of one
agent would have nothing in common.
"""

from __future__ import annotations

import re

BEGIN = b"x-anthropic-billing-header:"
_SEEN_BYTES = 512
"""A system prompt begins within these, also in its message's JSON."""
_LINE = re.compile(re.escape(BEGIN) + rb'[^"\\\n]*(?:\\n|\n)?')


def without_billing_line(start: bytes) -> bytes:
    """Return a system prompt without the line, as text or as JSON."""
    return _LINE.sub(b"", start, count=1) if BEGIN in start[:_SEEN_BYTES] else start
