"""The priority that a call states for its program: by our header, else by a field of other APIs.

OpenAI's `service_tier` and the `priority` of vLLM were made for other servers, so a value that means nothing
here is the default priority and no error. Where a client states both, the tier counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from autellix_backend.core.priority import Priority
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.raw_json import scalar
from autellix_wire.priorities import PRIORITIES

TIER_FIELD, RANK_FIELD = "service_tier", "priority"
_TIERS = {"priority": Priority.INTERACTIVE, "flex": Priority.BATCH}
"""Priorities by OpenAI's names; `auto`, `default` and `scale` say nothing about urgency."""


def priority_of_body(fields: Mapping[str, msgspec.Raw]) -> Priority:
    """Return the priority that the fields of a call's body state."""
    if TIER_FIELD in fields:
        tier = scalar(fields[TIER_FIELD])
        return _TIERS.get(tier, Priority.DEFAULT) if isinstance(tier, str) else Priority.DEFAULT
    return _of_rank(scalar(fields[RANK_FIELD])) if RANK_FIELD in fields else Priority.DEFAULT


def own_priority(stated: str, header: str) -> Priority:
    """Return the priority that our header states.

    Raises:
        InvalidIdentityError: if it is unknown.
    """
    name = stated.strip().lower()
    if name not in PRIORITIES:
        problem = f"{header} is {stated[:64]!r}; expected one of {', '.join(PRIORITIES)}"
        raise InvalidIdentityError(problem, header)
    return Priority(name)


def _of_rank(rank: object) -> Priority:
    """Return what a number of vLLM means: below zero goes before, above zero after."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank == 0:
        return Priority.DEFAULT
    return Priority.INTERACTIVE if rank < 0 else Priority.BATCH
