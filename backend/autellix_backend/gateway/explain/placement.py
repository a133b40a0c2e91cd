"""Why a program is on its engine, in words."""

from __future__ import annotations

from autellix_backend.core.balance import Placement
from autellix_backend.observe.durations import seconds


def placement_text(placement: Placement | None) -> str:
    """Return why a program is on its engine; empty if memory was not the reason."""
    if placement is None:
        return ""
    engine, context = placement.engine, f"its {placement.context_tokens:,}-token context"
    wait = f"would wait about {seconds(placement.wait_s)} for memory" if placement.wait_s else "fits at once"
    shared = ""
    if placement.shared_tokens:
        shared = f"; {placement.shared_tokens:,} more tokens are shared with programs there"
    if placement.left is None:
        return f"It was placed on {engine}: {context} {wait} there{shared}."
    moved = f"It was moved from {placement.left} to {engine}"
    if placement.left_wait_s <= placement.wait_s:
        return f"{moved}: calls wait longer there than {context} takes to recompute."
    waited = f"would have waited {seconds(placement.left_wait_s)} for memory"
    rest = f"about {seconds(placement.wait_s)}" if placement.wait_s else "fits at once"
    return f"{moved}: {context} {waited} there, and here {rest}{shared}."
