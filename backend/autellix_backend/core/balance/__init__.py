"""The balancers by name: which engine gets a call."""

from __future__ import annotations

from autellix_backend.core.balance.base import Balancer, EngineLoad, FinishedCall, Placement
from autellix_backend.core.balance.bounded import LocalityBounded
from autellix_backend.core.balance.locality import DEFAULT_THRESHOLD_TOKENS, Locality
from autellix_backend.core.balance.spread import LeastUsed, RoundRobin
from autellix_backend.core.balance.working_set import WorkingSet
from autellix_backend.core.errors import UnknownBalancerError

__all__ = [
    "BALANCER_NAMES",
    "DEFAULT_BALANCER",
    "Balancer",
    "EngineLoad",
    "FinishedCall",
    "Placement",
    "make_balancer",
]

BALANCER_NAMES = (RoundRobin.name, LeastUsed.name, Locality.name, LocalityBounded.name, WorkingSet.name)
DEFAULT_BALANCER = WorkingSet.name
"""Of the gateway and the simulator."""


def make_balancer(name: str, threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS) -> Balancer:
    """Return a fresh balancer of this name; the threshold (tokens of prompt) is `locality`'s.

    Raises:
        UnknownBalancerError: no balancer has this name; the message lists those that exist.
    """
    if name == RoundRobin.name:
        return RoundRobin()
    if name == LeastUsed.name:
        return LeastUsed()
    if name == Locality.name:
        return Locality(threshold_tokens)
    if name == LocalityBounded.name:
        return LocalityBounded()
    if name == WorkingSet.name:
        return WorkingSet()
    raise UnknownBalancerError(name, BALANCER_NAMES)
