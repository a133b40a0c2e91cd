"""Which engine gets a call, where there are several."""

from __future__ import annotations

from dataclasses import dataclass

from autellix_backend.core.balance import BALANCER_NAMES
from autellix_backend.core.balance.locality import DEFAULT_THRESHOLD_TOKENS
from autellix_backend.settings.base import check, check_positive, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSettings:
    """The choice of the engine of each call."""

    name: str = "locality-bounded"
    """The balancer; `locality` is Algorithm 2 of the paper."""
    threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS
    """From how many tokens of prompt on `locality` keeps a program's calls at one engine."""

    def __post_init__(self) -> None:
        is_known = self.name in BALANCER_NAMES
        check(is_known, "balancer.name", f"is {self.name!r}", f"one of {listed(BALANCER_NAMES)}")
        check_positive("balancer", self, "threshold_tokens", zero_allowed=True)
