"""The balancers by name: which engine gets a call."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.core.balance.base import ArrivingCall, Balancer, EngineLoad, FinishedCall, Placement
from autellix_backend.core.balance.bounded import LocalityBounded
from autellix_backend.core.balance.locality import DEFAULT_THRESHOLD_TOKENS, Locality
from autellix_backend.core.balance.spread import LeastUsed, RoundRobin
from autellix_backend.core.balance.working_set import WorkingSet
from autellix_backend.core.errors import UnknownBalancerError
from autellix_backend.core.names import present_name

__all__ = [
    "BALANCER_NAMES",
    "DEFAULT_BALANCER",
    "ArrivingCall",
    "Balancer",
    "EngineLoad",
    "FinishedCall",
    "Placement",
    "make_balancer",
]

_BALANCERS: dict[str, Callable[[int], Balancer]] = {
    RoundRobin.name: lambda _: RoundRobin(),
    LeastUsed.name: lambda _: LeastUsed(),
    Locality.name: Locality,
    LocalityBounded.name: lambda _: LocalityBounded(),
    WorkingSet.name: lambda _: WorkingSet(),
}
BALANCER_NAMES = tuple(_BALANCERS)
DEFAULT_BALANCER = WorkingSet.name
"""The default balancer of the gateway and the simulator."""


def make_balancer(name: str, threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS) -> Balancer:
    """Return a fresh balancer of this name; the threshold (tokens of prompt) is `locality`'s.

    Raises:
        UnknownBalancerError: no balancer has this name; the message lists those that exist.
    """
    try:
        make = _BALANCERS[present_name(name, BALANCER_NAMES)]
    except KeyError:
        raise UnknownBalancerError(name, BALANCER_NAMES) from None
    return make(threshold_tokens)
