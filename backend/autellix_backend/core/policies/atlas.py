"""Adaptive thread-level attained service (ATLAS).

Rule: a call's priority is the longest chain of service observed in its program when it arrives.
Formula: p(c_j) = 0 for a root, else max over parents k of p(c_k) + t_k (eq. 2), estimated by one scalar
per program: each call inherits it, and on completion service = max(service, inherited + t).
When to choose it: programs with parallel calls; equal to PLAS for single-threaded ones.
Cost: a thread that starts late inherits the longest chain, though its own parents may be shorter.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.base import Policy


class Atlas(Policy):
    """Favour programs with the shortest observed critical path."""

    name: ClassVar[str] = "atlas"
