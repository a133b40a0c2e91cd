"""Measure the share of a tenant with one long program beside one with a fresh program for every call.

The scheduler's core alone, one unit of time per engine step, without a model. Tenant A keeps many calls in
the engine, each of a new program; tenant B keeps as many of one program. Both always have
calls waiting. Reported are B's share of the service, with tenants and without, and how many
preemptions there were.

    python benchmarks/tenant_fairness.py [--policies plas atlas] [--slots 4 16] [--steps 20000]
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import Counter
from dataclasses import dataclass

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig, bounds_for
from autellix_backend.core.machine import Machine
from autellix_backend.core.names import POLICY_NAMES

FLOOD, LONG = "A", "B"
MEAN_CALL_STEPS = 20
SHORTEST, LONGEST = 1, 2 * MEAN_CALL_STEPS - 1
CALLS_PER_SLOT = 3
"""How many calls each tenant keeps in the engine for every slot."""
WEIGHTS = (1.0, 2.0, 4.0)
"""B's weight beside A's, which is 1."""
FAIR_SHARE = 0.45
"""B's least share at equal weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessResult:
    """The result of one run."""

    policy: str
    slots: int
    has_tenants: bool
    weight: float
    entitled_share: float
    share: float
    calls: int
    preemptions: int


class FairnessBench:
    """Two tenants in a closed loop over one machine."""

    def __init__(self, policy: str, slots: int, *, has_tenants: bool, weight: float, seed: int = 0) -> None:
        self._machine = Machine(SchedulerConfig(policy=policy, bounds=bounds_for(MEAN_CALL_STEPS)))
        self._slots = slots
        self._has_tenants = has_tenants
        self._weights = {FLOOD: 1.0, LONG: weight}
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._left: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._served: Counter[str] = Counter()
        self._preemptions = 0

    def run(self, steps: int) -> FairnessResult:
        """Play the steps and return B's share."""
        for owner in (FLOOD, LONG) * (CALLS_PER_SLOT * self._slots):
            self._arrive(owner, 0)
        for now in range(steps):
            self._machine.tick(now)
            self._fill(now)
            for call_id in [call.call_id for call in self._machine if call.is_running]:
                self._serve(call_id, now + 1)
        weight = self._weights[LONG]
        return FairnessResult(
            policy=self._machine.policy.name,
            slots=self._slots,
            has_tenants=self._has_tenants,
            weight=weight,
            entitled_share=weight / (1 + weight),
            share=self._served[LONG] / self._served.total(),
            calls=next(self._numbers) - len(self._left),
            preemptions=self._preemptions,
        )

    def _arrive(self, owner: str, now: int) -> None:
        call_id = f"{owner}{next(self._numbers)}"
        self._owners[call_id] = owner
        self._left[call_id] = self._random.randint(SHORTEST, LONGEST)
        self._machine.arrive(
            Arrival(
                call_id,
                LONG if owner == LONG else call_id,
                expected_s=self._left[call_id],
                tenant=owner if self._has_tenants else "",
                weight=self._weights[owner] if self._has_tenants else 1.0,
            ),
            now,
        )

    def _fill(self, now: int) -> None:
        chosen = {call.call_id: call for call in self._machine.batch(self._slots)}
        for call in list(self._machine):
            if call.is_running and call.call_id not in chosen:
                self._machine.preempt(call.call_id, now)
                self._preemptions += 1
        for call in chosen.values():
            if not call.is_running:
                self._machine.start(call.call_id, now)

    def _serve(self, call_id: str, now: int) -> None:
        owner = self._owners[call_id]
        self._machine.charge(call_id, 1.0, now)
        self._served[owner] += 1
        self._left[call_id] -= 1
        if self._left[call_id] == 0:
            program_id = self._machine.finish(call_id, now).program_id
            if owner == FLOOD:
                self._machine.end_program(program_id, now)
            del self._left[call_id], self._owners[call_id]
            self._arrive(owner, now)


def measure(policies: list[str], slots: list[int], steps: int) -> list[FairnessResult]:
    """Run every case, first without tenants."""
    results = []
    for policy, count in itertools.product(policies, slots):
        results.append(FairnessBench(policy, count, has_tenants=False, weight=1.0).run(steps))
        results += [
            FairnessBench(policy, count, has_tenants=True, weight=weight).run(steps) for weight in WEIGHTS
        ]
    return results


def print_table(results: list[FairnessResult]) -> None:
    """Print one line per run."""
    print("| policy | slots | tenants | weights A : B | B's share | entitled | preemptions per call |")
    print("|---|---|---|---|---|---|---|")
    for result in results:
        weights = f"1 : {result.weight:g}" if result.has_tenants else "-"
        print(
            f"| {result.policy} | {result.slots} | {'yes' if result.has_tenants else 'no'} | {weights} "
            f"| {result.share:.1%} | {result.entitled_share:.1%} | {result.preemptions / result.calls:.2f} |"
        )


def main() -> int:
    """Run the comparison; exit with 1 if B got less than its share at equal weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", nargs="+", choices=POLICY_NAMES, default=["plas", "atlas"])
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()
    results = measure(args.policies, args.slots, args.steps)
    print_table(results)
    fair = [result.share for result in results if result.has_tenants and result.weight == 1]
    return int(min(fair) < FAIR_SHARE)


if __name__ == "__main__":
    raise SystemExit(main())
