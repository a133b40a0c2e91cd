"""Time the core's decision per engine step, by policy and admission, without an engine.

A decision is `review`, `tick` and `batch`. A full batch runs decode steps of 20 ms on its own clock while
a fixed number of calls waits, from programs of very different sizes, some of which share a prefix. With
admission, the programs present need far more than the memory. Times are CPU times of the one thread.

A second table has what events cost where one program has all open calls, and where each has its own: an
arrival, a decision and an end in each step, with memory for all.

    python benchmarks/decision_overhead.py [--waiting 10 100 1000 10000] [--slots 64] [--steps 400]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.call import Call
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine

STEP_S = 0.02
LIMIT_S = 0.02 * STEP_S
KV_SHARE = 0.6
CONTEXTS = (200, 1000, 3000)
OUTPUTS = (5, 20, 80, 320)
PREFIXES = ("tools", "manual", None)
PREFIX_TOKENS = 100
EVENTS = ("arrival", "decision", "end")
COLUMNS = ("tenants", "waiting", "mean_us", "p50_us", "p99_us")
# Policy, admission, tenants: None makes one tenant for every eight waiting calls.
CASES: tuple[tuple[str, str, int | None], ...] = (
    ("fcfs", "none", 1),
    ("plas", "none", 1),
    ("atlas", "none", 1),
    ("boost", "none", 1),
    ("plas", "working_set", 1),
    ("boost", "working_set", 1),
    ("boost", "working_set", None),
)


class Engine:
    """Runs the machine's batches on a clock of its own, and keeps a number of calls waiting."""

    def __init__(self, machine: Machine, waiting: int, slots: int, tenants: int) -> None:
        self._machine = machine
        self._waiting = waiting
        self._slots = slots
        self._tenants = tenants
        self._random = random.Random(0)
        self._running: list[Call] = []
        self._left: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._now = 0.0

    def run(self, steps: int) -> list[float]:
        """Return the seconds of each decision."""
        return [self._step(step) for step in range(steps)]

    def _step(self, step: int) -> float:
        while len(self._machine) - len(self._running) < self._waiting:
            self._arrive()
        started = time.thread_time()
        self._machine.review(self._now, step, self._tokens.__getitem__)
        self._machine.tick(self._now)
        batch = self._machine.batch(self._slots)
        seconds = time.thread_time() - started
        self._execute(batch)
        return seconds

    def _arrive(self) -> None:
        is_new = self._random.random() < 0.3
        program = self._random.randrange(10**6 if is_new else 1 + self._waiting // 4)
        tokens = self._random.choice(CONTEXTS)
        call_id = f"c{len(self._tokens)}"
        self._left[call_id], self._tokens[call_id] = self._random.choice(OUTPUTS), tokens
        arrival = Arrival(
            call_id,
            f"p{program}",
            tenant=f"t{program % self._tenants}",
            service_s=self._random.choice((0.0, 0.2, 1.0, 4.0)),
            work=self._random.choice((0.0, 1e3, 1e5)),
            context=Context(tokens, 0, self._random.choice(PREFIXES), PREFIX_TOKENS),
        )
        self._machine.arrive(arrival, self._now)

    def _execute(self, batch: list[Call]) -> None:
        machine = self._machine
        for call in set(self._running) - set(batch):
            machine.preempt(call.call_id, self._now)
        for call in batch:
            if not call.is_running:
                machine.start(call.call_id, self._now)
        self._now += STEP_S
        machine.observe_step(64.0 * len(batch), STEP_S)
        for call in batch:
            machine.charge(call.call_id, STEP_S, self._now)
            self._left[call.call_id] -= 1
            self._tokens[call.call_id] += 1
        self._running = [call for call in batch if self._left[call.call_id] > 0]
        for call in batch:
            if self._left[call.call_id] <= 0:
                self._finish(call)

    def _finish(self, call: Call) -> None:
        tokens = self._tokens[call.call_id]
        self._machine.finish(call.call_id, self._now, work=float(tokens), context_tokens=tokens)
        if self._random.random() < 0.3:
            self._machine.end_program(call.program_id, self._now)


def measure(
    policy: str, admission: str, tenants: int, waiting: int, slots: int, steps: int
) -> dict[str, Any]:
    """Return the microseconds of a decision; the first tenth of the steps warms up."""
    config = SchedulerConfig(policy=policy, admission=admission, kv_share=KV_SHARE, token_s=1e-4)
    # For two contexts of mean length per slot.
    kv_tokens = 2 * slots * statistics.fmean(CONTEXTS) / KV_SHARE
    engine = Engine(Machine(config, kv_tokens=kv_tokens), waiting, slots, tenants)
    times = sorted(engine.run(steps)[steps // 10 :])
    return {
        "policy": policy,
        "admission": admission,
        "tenants": tenants,
        "waiting": waiting,
        "mean_us": 1e6 * statistics.fmean(times),
        "p50_us": 1e6 * statistics.median(times),
        "p99_us": 1e6 * times[int(0.99 * (len(times) - 1))],
    }


def measure_events(policy: str, waiting: int, slots: int, steps: int, *, is_one: bool) -> dict[str, Any]:
    """Return the mean and the 99th percentile, in microseconds, of each kind of event.

    Args:
        policy: The policy.
        waiting: The calls that wait beside those in the slots.
        slots: The most running calls.
        steps: The steps that are timed.
        is_one: Whether all calls are of one program.
    """
    machine = Machine(SchedulerConfig(policy=policy, token_s=1e-4), kv_tokens=1e9)
    # As if programs differed much in size: the boost is at its full strength.
    machine.table.statistics.sizes_of("").known = 2.0
    times: dict[str, list[float]] = {event: [] for event in EVENTS}
    numbers, now = count(), 0.0

    def arrive() -> None:
        number = next(numbers)
        program = "p" if is_one else f"p{number}"
        shared = 300 if is_one and number else 0
        context = Context(400, shared, "tools", PREFIX_TOKENS)
        machine.arrive(Arrival(f"c{number}", program, context=context), now)

    def decide(step: int) -> list[Call]:
        machine.review(now, step, lambda _: 410)
        machine.tick(now)
        return machine.batch(slots)

    def timed(event: str, action: Callable[[], Any]) -> Any:
        started = time.thread_time()
        result = action()
        times[event].append(1e6 * (time.thread_time() - started))
        return result

    for _ in range(waiting + slots):
        arrive()
    for step in range(steps):
        timed("arrival", arrive)
        batch = timed("decision", partial(decide, step))
        for call in batch:
            if not call.is_running:
                machine.start(call.call_id, now)
        now += STEP_S
        machine.observe_step(64.0 * len(batch), STEP_S)
        for call in batch:
            machine.charge(call.call_id, STEP_S, now)
        timed("end", partial(machine.finish, batch[0].call_id, now, work=1000.0, context_tokens=420))
    row: dict[str, Any] = {"policy": policy, "programs": "one" if is_one else "each", "waiting": waiting}
    for event, taken in times.items():
        row[event] = f"{statistics.fmean(taken):.0f} ({sorted(taken)[int(0.99 * (steps - 1))]:.0f})"
    return row


def print_events(rows: list[dict[str, Any]]) -> None:
    """Print one line per case."""
    print("\nmicroseconds per event: mean (99th percentile)")
    print(f"{'policy':<8} {'programs':<8} {'waiting':>8}" + "".join(f"{event:>16}" for event in EVENTS))
    for row in rows:
        events = "".join(f"{row[event]:>16}" for event in EVENTS)
        print(f"{row['policy']:<8} {row['programs']:<8} {row['waiting']:>8}{events}")


def print_table(rows: list[dict[str, Any]], slots: int) -> None:
    """Print one line per case."""
    print(f"{slots} slots; microseconds per decision; limit 2 % of a 20 ms step: {LIMIT_S * 1e6:.0f}")
    print(
        f"{'policy':<8} {'admission':<12} {'tenants':>8} {'waiting':>8} {'mean':>8} {'median':>8} {'p99':>8}"
    )
    for row in rows:
        print(
            f"{row['policy']:<8} {row['admission']:<12}" + "".join(f"{row[name]:>9.0f}" for name in COLUMNS)
        )


def main() -> int:
    """Run all cases; the exit status is 0 if the limit holds for one tenant and 1,000 calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    rows = [
        measure(policy, admission, tenants or max(2, waiting // 8), waiting, args.slots, args.steps)
        for policy, admission, tenants in CASES
        for waiting in args.waiting
    ]
    print_table(rows, args.slots)
    print_events(
        [
            measure_events(policy, waiting, args.slots, args.steps, is_one=is_one)
            for policy in ("boost", "plas", "atlas")
            for is_one in (False, True)
            for waiting in args.waiting
        ]
    )
    judged = [row["mean_us"] for row in rows if row["waiting"] <= 1000 and row["tenants"] == 1]
    return int(any(mean_us > LIMIT_S * 1e6 for mean_us in judged))


if __name__ == "__main__":
    raise SystemExit(main())
