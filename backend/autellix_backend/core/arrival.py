"""A call that arrives at a queue: who it belongs to, and what its caller knows of its program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

__all__ = ["Arrival"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A call as it arrives; a bad weight raises ValueError."""

    call_id: str
    """Unique among the active calls of the queue."""
    program_id: str
    _: KW_ONLY
    thread_id: str = "0"
    tenant: str = ""
    """Who shares the engine with other tenants."""
    weight: float = 1.0
    """The tenant's share of the engine, in proportion to the weights of the others."""
    service_s: float | None = None
    """The program's service and waiting, where the caller keeps them: the table takes the larger value."""
    wait_s: float | None = None
    inherited_s: float | None = None
    """The service that the call itself starts with, for policies that read parents; None if not looked up."""
    parents: Sequence[str] | None = None
    """The calls that this one follows, for policies that read parents; None if unknown."""
    expected_s: float | None = None
    """Expected service (s) of the call (`sjf`) or of its program from here on (`hinted`, `srpt`)."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be positive and finite, not {self.weight}")
