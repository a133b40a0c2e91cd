"""ATLAS over the known call graph.

Rule: a call's priority is the longest chain of service among its own ancestors.
Formula: p(c_j) = 0 for a root, else max over parents k of p(c_k) + t_k (eq. 2, exactly), from the parent ids
that the client sends; a call whose parents are unknown takes the program's longest chain, as in `atlas`.
When to choose it: parallel programs whose branches differ much in length, behind a client that sends parents.
Cost: one number per completed call is kept until the program ends; short branches of a program that has
received much service run as early as a new program's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autellix_backend.core.policies.atlas import Atlas


class AtlasDag(Atlas):
    """Favour calls with the shortest critical path behind them."""

    name: ClassVar[str] = "atlas_dag"
    reads_parents: ClassVar[bool] = True

    def inherit(self, program_service_s: float, parent_ends_s: Sequence[float] | None = None) -> float:
        """Start at the end of the longest parent's path."""
        return program_service_s if parent_ends_s is None else max(parent_ends_s, default=0.0)  # eq. 2
