"""What the page of a watched demo shows: one heat at a time, with the calls that each policy has answered.

Policies take turns, because their engines would take the processor from each other. All turns of a heat have
the same programs and arrivals, so the page draws them over the seconds since the start of each turn: the
policy that plays is live, and those that have played are shown at the same second of their turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autellix_lab.bench.compare import Turn
from autellix_lab.bench.results import CallResult


@dataclass(slots=True)
class _Lane:
    """One policy's turn of the heat."""

    page_url: str
    """The live page of its gateway."""
    began: float | None = None
    """On the race's clock; None before its first call was answered."""
    is_playing: bool = True
    calls: list[tuple[int, float]] = field(default_factory=list)
    """Answered calls: the place of the program, and seconds since the start of the turn."""


class Race:
    """The heat that is played, and the means of those before.

    One thread plays, others answer the page.
    """

    def __init__(self, policies: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without a heat; `clock` returns seconds."""
        self._policies = tuple(policies)
        self._clock = clock
        self._lock = threading.Lock()
        self._news = "The engines start."
        self._is_over = False
        self._heats: list[tuple[str, dict[str, float]]] = []
        """Title of each heat and the mean latency (s) of its programs by policy."""
        self._turn: Turn | None = None
        self._lanes: dict[str, _Lane] = {}

    def tell(self, news: str) -> None:
        """Set the text that is shown between two heats."""
        with self._lock:
            self._news = news

    def begin(self, turn: Turn) -> Callable[[CallResult], None]:
        """Begin a policy's turn; the function that is returned takes its results as they come."""
        places = {program.program_id: place for place, program in enumerate(turn.programs)}
        lane = _Lane(page_url=f"{turn.base_url}/autellix/")
        with self._lock:
            self._rest()
            if self._turn is None or self._turn.heat != turn.heat:
                self._heats.append((turn.heat, {}))
                self._lanes = {}
            self._turn, self._lanes[turn.policy] = turn, lane

        def take(result: CallResult) -> None:
            with self._lock:
                # The client takes a while to start, and its results a moment to come: the earliest counts.
                began = self._clock() - result.finish_s
                lane.began = began if lane.began is None else min(lane.began, began)
                lane.calls.append((places[result.program], result.finish_s))
                if len(lane.calls) == turn.calls and self._turn is turn:
                    self._rest()

        return take

    def end(self) -> None:
        """End the race; the page keeps its last state."""
        with self._lock:
            self._rest()
            self._is_over = True

    def state(self, heat: int, known: dict[str, int]) -> dict[str, Any]:
        """Return the state with the calls that the page lacks, as plain JSON values.

        Args:
            heat: The heat that the page shows.
            known: How many calls of each policy in that heat it knows.
        """
        with self._lock:
            number = len(self._heats)
            after = known if heat == number else {}
            return {
                "policies": self._policies,
                "news": self._news,
                "is_over": self._is_over,
                "heat": number,
                "title": self._heats[-1][0] if self._heats else "",
                "programs": [] if self._turn is None else _programs(self._turn),
                "lanes": {
                    policy: self._lane_state(lane, after.get(policy, 0))
                    for policy, lane in self._lanes.items()
                },
                "heats": [{"title": title, "mean_s": means} for title, means in self._heats if means],
            }

    def _lane_state(self, lane: _Lane, after: int) -> dict[str, Any]:
        return {
            "page_url": lane.page_url,
            "is_playing": lane.is_playing,
            "elapsed_s": 0.0 if lane.began is None else self._clock() - lane.began,
            "calls": lane.calls[after:],
        }

    def _rest(self) -> None:
        """End the turn that was played, if any."""
        lane = None if self._turn is None else self._lanes[self._turn.policy]
        if self._turn is None or lane is None or not lane.is_playing:
            return
        lane.is_playing = False
        last_s = [0.0] * len(self._turn.programs)
        for place, finish_s in lane.calls:
            last_s[place] = max(last_s[place], finish_s)
        pairs = zip(last_s, self._turn.arrivals_s, strict=True)
        latencies_s = [finish_s - arrival_s for finish_s, arrival_s in pairs if finish_s > 0]
        if latencies_s:
            self._heats[-1][1][self._turn.policy] = sum(latencies_s) / len(latencies_s)


def _programs(turn: Turn) -> list[dict[str, Any]]:
    pairs = zip(turn.programs, turn.arrivals_s, strict=True)
    return [
        {
            "id": program.program_id,
            "kind": program.source,
            "calls": len(program.calls),
            "arrival_s": arrival_s,
        }
        for program, arrival_s in pairs
    ]
