"""The boosted order of programs: first come, first served, but little service counts as an earlier arrival.

The gamma-Boost of Yu and Scully ("Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1",
arXiv 2404.08826), with the known work of a program in the place of its unknown size:

    key = arrival - head start of its priority + g * ln(1 - exp(-s / g))

The known work is that of its finished calls and of its prompts that wait, or what its client expects of it
in all, if that is more; s is the engine time (s) that it takes. The strength g (s) is a share of the mean
response time of programs. Where all programs have about the same size, known work says nothing about what is
left, and order of arrival is best: g falls to zero as the spread of sizes does. Each tenant has a strength of
its own, by its own sizes.

A call whose program nothing identified may be any call of any program. By its own work, calls of all programs
would take turns, and these would evict each other's contexts; by its arrival alone, it would wait for calls
of all earlier programs. So it counts as having arrived earlier, by as much as the lower quartile of the calls
of identified programs do: such calls run in the order of their arrival, and share the engine with the others.
The mean or the median, which calls of old programs raise, would let them pass the calls of new programs.

Whoever waits for a group of programs waits for its last one. So a program also counts as having arrived
earlier by the share of its group that has ended, times the mean response time as it is then.

Strength and cost move all the time, but work counts by powers of two. So a program's place has two parts, its
arrival and the class of its work, which only its own events change. The boost of each class is looked up
where programs are compared (`core.queues.classed`): a new strength moves no program.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from autellix_backend.core.place import Place, WorkClass
from autellix_backend.core.recent import latest
from autellix_backend.core.statistics import MAX_TENANTS, ProgramStatistics, TokenCost
from autellix_backend.core.table import Program

OUTPUT_WEIGHT = 32.0
"""Prompt tokens that count as one output token. A call waits a whole step for each token that it decodes, in
which an engine prefills some dozens to hundreds of tokens. Any value from 10 to 100 serves about as well."""

ONE_SIZE_SPREAD, FULL_BOOST_SPREAD = 0.5, 1.0
"""Standard deviations of ln(work) between which the boost grows from nothing to its full strength."""
LEAST_WORK = 512.0
"""The least work counted for a program: without any, it would precede all that arrived before it."""
RENEWAL_S = 0.25
"""Strengths and cost are brought up to date so often: a step changes them by little, and looking every class
up again would take long with many tenants."""
UNIDENTIFIED = -1
"""The exponent in the class of calls whose program nothing identified."""
MAX_CLASSES = 256
"""Classes of one tenant whose calls count; the one that had no call for the longest is forgotten first."""
LEADS = 20
"""The latest calls of identified programs whose leads count. With 60 the means of program latency move by at
most 0.02 of `fcfs`'s, with a share of 0.15 or 0.35 in place of a quarter by up to 0.11."""
_LEAST_SHARE = 1e-12
"""The least share of the strength: below it, the logarithm loses all its digits."""


def work_of(prompt_tokens: float, output_tokens: float) -> float:
    """Return the work of tokens, in prompt tokens."""
    return prompt_tokens + OUTPUT_WEIGHT * output_tokens


@dataclass(slots=True)
class _Calls:
    """Finished calls of a class."""

    count: int = 0
    work: float = 0.0

    def add(self, work: float) -> None:
        self.count += 1
        self.work += work


class ProgramBoost:
    """The boost of programs, at a strength that follows what was measured."""

    def __init__(self, share: float, statistics: ProgramStatistics, token_cost: TokenCost) -> None:
        """Start without a boost; `share` is that of the response time at full strength."""
        self._share = share
        self._statistics = statistics
        self._token_cost = token_cost
        self.epoch = 0
        self._next_s = -math.inf
        self._token_s = token_cost.seconds
        self._leads: dict[str, deque[float]] = {}
        """By how much earlier (s) the latest calls of identified programs counted than they arrived, in each
        tenant that has calls whose program nothing identified."""
        self._calls: dict[str, dict[str, _Calls]] = {}
        """The finished calls of each class, in each tenant that has programs of which calls are expected."""
        self._strengths_s: dict[str, float] = {}
        """The strength of the boost, by tenant."""
        self._boosts_s: dict[WorkClass, float] = {}
        """The boosts of this epoch that are known; the others are computed once somebody asks for them."""

    @property
    def tenants(self) -> Collection[str]:
        """The tenants with a boost."""
        return self._strengths_s.keys() | self._leads.keys()

    @property
    def strength_s(self) -> float:
        """The largest strength of a tenant."""
        return max(self._strengths_s.values(), default=0.0)

    def renew(self, now: float) -> None:
        """Bring strengths and cost up to date, unless that was done less than RENEWAL_S ago."""
        if now < self._next_s:
            return
        self._next_s = now + RENEWAL_S
        full_s, self._token_s = self._share * self._statistics.response_s, self._token_cost.seconds
        self._strengths_s = {
            tenant: full_s * share
            for tenant, sizes in self._statistics.sizes.items()
            if (share := _strength_share(sizes.value))
        }
        # At once, so that they do not depend on when somebody asks for them.
        self._boosts_s = {
            WorkClass(tenant, UNIDENTIFIED): -sorted(leads)[len(leads) // 4]
            for tenant, leads in self._leads.items()
            if leads
        }
        self.epoch += 1

    def on_arrival(self, program: Program, now: float) -> None:
        """Learn from a call that arrives: what its client expects, and how much earlier it counts."""
        if program.hints.has_size:
            left = self._expected_work(program)
            program.expected_work = None if left is None else program.work + left
        if not program.is_identified:
            latest(self._leads, program.tenant, partial(deque, maxlen=LEADS), MAX_TENANTS)
        elif (leads := self._leads.get(program.tenant)) is not None:
            leads.append(now - self.key_s(program))

    def on_finished(self, program: Program, work: float) -> None:
        """Learn what a call took, in a tenant that has programs of which calls are expected."""
        if (classes := self._calls.get(program.tenant)) is not None:
            latest(classes, program.hints.class_name, _Calls, MAX_CLASSES).add(work)

    def _expected_work(self, program: Program) -> float | None:
        """Return the work that the client of a program expects from now on; None if nothing is known."""
        hints = program.hints
        if hints.expected_tokens is not None:
            # Prompts come on top of it, and are less than the powers of two that count.
            return work_of(0, hints.expected_tokens)
        assert hints.expected_calls is not None, "a size is tokens or calls"
        classes = latest(self._calls, program.tenant, dict, MAX_TENANTS)
        calls = classes.get(hints.class_name)
        return None if calls is None else hints.expected_calls * calls.work / calls.count

    def place(self, program: Program) -> Place:
        """Return the present place of a program in the order of its tenant."""
        base_s = program.created_s - program.hints.priority.head_start_s
        if program.group is not None:
            base_s -= self._statistics.response_s * program.group.ended_share
        if not program.is_identified:
            return Place(base_s, WorkClass(program.tenant, UNIDENTIFIED))
        known = program.work + program.waiting_work
        if program.expected_work is not None:
            known = max(known, program.expected_work)
        # By powers of two, so that programs of about the same work keep the order of their arrival.
        exponent = math.ceil(math.log2(max(known, LEAST_WORK)))
        return Place(base_s, WorkClass(program.tenant, exponent))

    def of(self, work_class: WorkClass | None) -> float:
        """Return the time (s), zero or less, by which the programs of a class count as arriving later."""
        if work_class is None:
            return 0.0
        boost_s = self._boosts_s.get(work_class)
        if boost_s is None:
            boost_s = self._boosts_s[work_class] = self._compute(work_class)
        return boost_s

    def _compute(self, work_class: WorkClass) -> float:
        strength_s = self._strengths_s.get(work_class.tenant, 0.0)
        if work_class.exponent == UNIDENTIFIED or strength_s <= 0:
            return 0.0
        share = max(_LEAST_SHARE, work_class.work * self._token_s / strength_s)
        return strength_s * math.log(-math.expm1(-share))

    def key_s(self, program: Program) -> float:
        """Return the time (s) at which the program counts as having arrived."""
        place = self.place(program)
        return place.base + self.of(place.work_class)


def _strength_share(spread: float) -> float:
    """Return the share of the full strength at this spread of sizes."""
    return min(1.0, max(0.0, (spread - ONE_SIZE_SPREAD) / (FULL_BOOST_SPREAD - ONE_SIZE_SPREAD)))
