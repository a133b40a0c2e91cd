"""The learned bound before a simulated engine: the batch is as full as without it, the queue is short."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from autellix_backend.engines.probe import QueueLengths
from autellix_backend.gateway.engines.in_flight import PERIOD_S, LearnedBound

WARM_UP_S, END_S = 15.0, 80.0


@dataclass(slots=True)
class Run:
    """Clients that always have a next call, a gateway that holds those beyond the bound, and an engine."""

    slots: int
    shortest_s: float
    longest_s: float
    round_trip_s: float
    held: int
    bound: LearnedBound = field(default_factory=LearnedBound)
    sent: int = 0
    waiting: int = 0
    running: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    events: list[tuple[float, int, str]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def after(self, delay_s: float, now: float, event: str) -> None:
        heapq.heappush(self.events, (now + delay_s, next(self.numbers), event))

    def step(self, now: float, event: str) -> None:
        if event == "arrived":
            self.waiting += 1
        elif event == "finished":
            self.running -= 1
            self.after(self.round_trip_s / 2, now, "answered")
        elif event == "answered":
            self.sent, self.held = self.sent - 1, self.held + 1
        elif event == "reading":
            seen = QueueLengths(running=self.running, waiting=self.waiting)
            self.bound.observe(seen, self.sent, is_held=self.held > 0 and self.sent >= self.bound.calls)
            self.after(PERIOD_S, now, "reading")
        while self.waiting and self.running < self.slots:
            self.waiting, self.running = self.waiting - 1, self.running + 1
            self.after(self.draw.uniform(self.shortest_s, self.longest_s), now, "finished")
        while self.held and self.sent < self.bound.calls:
            self.held, self.sent = self.held - 1, self.sent + 1
            self.after(self.round_trip_s / 2, now, "arrived")


def shares(run: Run) -> tuple[float, float]:
    """Return the mean share of busy slots, and the mean number of calls that wait in the engine."""
    now, busy_s, waiting_s = 0.0, 0.0, 0.0
    run.after(PERIOD_S, now, "reading")
    run.step(now, "begin")
    while now < END_S:
        due_s, _, event = heapq.heappop(run.events)
        passed_s = max(0.0, due_s - max(now, WARM_UP_S))
        busy_s += run.running * passed_s
        waiting_s += run.waiting * passed_s
        now = due_s
        run.step(now, event)
    length_s = now - WARM_UP_S
    return busy_s / length_s / run.slots, waiting_s / length_s


@pytest.mark.parametrize(
    ("slots", "shortest_s", "longest_s", "round_trip_s"),
    [
        (4, 1.0, 2.0, 0.02),
        # A busy machine: the way to the engine takes as long as a short call.
        (4, 1.0, 2.0, 0.2),
        (8, 0.2, 0.6, 0.1),
        (8, 0.2, 0.6, 0.3),
        # All calls of a batch end together.
        (8, 0.4, 0.4, 0.2),
        (64, 2.0, 6.0, 0.3),
    ],
)
def test_the_batch_is_full_and_the_engines_queue_short(
    slots: int, shortest_s: float, longest_s: float, round_trip_s: float
) -> None:
    run = Run(slots, shortest_s, longest_s, round_trip_s, held=5 * slots)
    busy, waiting = shares(run)
    assert busy >= 0.98
    assert waiting <= max(4.0, slots / 10)
