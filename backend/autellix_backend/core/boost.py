"""The boosted order of programs: first come, first served, but little service counts as an earlier arrival.

The gamma-Boost of Yu and Scully ("Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1",
arXiv 2404.08826), with the known work of a program in the place of its unknown size:

    key = arrival - head start of its priority + g * ln(1 - exp(-s / g))

The known work is that of its finished calls and of its prompts that wait; s is the engine time (s) that it
takes. The strength g (s) is a share of the programs' mean response time. Where all programs have about the
same size, known work says nothing about what is left, and order of arrival is best: g falls to zero as the
spread of sizes does. Each tenant has a strength of its own, by its own sizes.

Whoever waits for a group of programs waits for its last one. So a program also counts as having arrived
earlier by the share of its group that has ended, times the programs' mean response time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from autellix_backend.core.statistics import ProgramStatistics, TokenCost
from autellix_backend.core.table import Program

OUTPUT_WEIGHT = 32.0
"""Prompt tokens that count as one output token. A call waits a whole step for each token that it decodes, in
which an engine prefills some dozens to hundreds of tokens. Any value from 10 to 100 serves about as well."""

ONE_SIZE_SPREAD, FULL_BOOST_SPREAD = 0.5, 1.0
"""Standard deviations of ln(work) between which the boost grows from nothing to its full strength."""
LEAST_WORK = 512.0
"""The least work counted for a program: without any, it would precede all that arrived before it."""
_LEAST_SHARE = 1e-12
"""The least share of the strength: below it, the logarithm loses all its digits."""
_TOLERANCE = 0.1
"""Keys are computed again once strength or cost has moved by this share; until then they keep their order."""


def work_of(prompt_tokens: float, output_tokens: float) -> float:
    """Return the work of tokens, in prompt tokens."""
    return prompt_tokens + OUTPUT_WEIGHT * output_tokens


class _Strength(NamedTuple):
    seconds: float
    token_s: float
    """The cost of a token that its keys were computed with."""

    def has_moved(self, before: _Strength) -> bool:
        if self.seconds == before.seconds == 0:
            return False  # Keys are times of arrival.
        return not (_is_near(self.seconds, before.seconds) and _is_near(self.token_s, before.token_s))


_NO_STRENGTH = _Strength(0.0, 0.0)


class ProgramBoost:
    """The keys of programs, at a strength that follows what was measured."""

    def __init__(self, share: float, statistics: ProgramStatistics, token_cost: TokenCost) -> None:
        """Start without a boost; `share` is that of the response time at full strength."""
        self._share = share
        self._statistics = statistics
        self._token_cost = token_cost
        self._strengths: dict[str, _Strength] = {}
        """The strength of the boost, by tenant."""

    @property
    def strength_s(self) -> float:
        """The largest strength of a tenant."""
        return max((strength.seconds for strength in self._strengths.values()), default=0.0)

    def refresh(self) -> bool:
        """Bring strengths and cost up to date; return whether any moved, and with it keys."""
        full_s, token_s = self._share * self._statistics.response_s, self._token_cost.seconds
        measured = self._statistics.sizes
        if self._strengths.keys() != measured.keys():
            self._strengths = {tenant: self._strengths.get(tenant, _NO_STRENGTH) for tenant in measured}
        has_moved = False
        for tenant, sizes in measured.items():
            spread = (sizes.value - ONE_SIZE_SPREAD) / (FULL_BOOST_SPREAD - ONE_SIZE_SPREAD)
            latest = _Strength(full_s * min(1.0, max(0.0, spread)), token_s)
            if latest.has_moved(self._strengths[tenant]):
                self._strengths[tenant] = latest
                has_moved = True
        return has_moved

    def key_s(self, program: Program) -> float:
        """Return the time (s) at which the program counts as having arrived."""
        arrival_s = program.created_s - program.priority.head_start_s
        if program.group is not None:
            arrival_s -= self._statistics.response_s * program.group.ended_share
        strength_s, token_s = self._strengths.get(program.tenant, _NO_STRENGTH)
        if strength_s <= 0:
            return arrival_s
        known = program.expected_work or program.work + program.waiting_work
        # By powers of two, so that programs of about the same work keep the order of their arrival.
        work = 2.0 ** math.ceil(math.log2(max(known, LEAST_WORK)))
        share = max(_LEAST_SHARE, work * token_s / strength_s)
        return arrival_s + strength_s * math.log(-math.expm1(-share))


def _is_near(value: float, other: float) -> bool:
    return abs(value - other) <= _TOLERANCE * other
