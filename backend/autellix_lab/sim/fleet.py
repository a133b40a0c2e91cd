"""A fleet that follows a signal, by the rule of Kubernetes' HorizontalPodAutoscaler (`autoscaling/v2`).

    engines = ceil(sum of the signal over engines / target), within bounds

The signal is the mean of a minute. Nothing changes while the sum is within a tenth of the number of engines
times the target. Of a lower number, the highest that was wanted within a window counts. An engine takes
a while to start. The youngest ones leave: they get no further call, finish those that they have, and free
their place only then, as in a StatefulSet.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import fmean

from autellix_backend.core.balance import EngineLoad


@dataclass(frozen=True, slots=True)
class EngineSample:
    """An engine that runs, at one moment."""

    load: EngineLoad
    busy_share: float
    """The share of the time since the last sample in which it computed."""


Signal = Callable[[float, Sequence[EngineSample]], Mapping[str, float]]
"""Returns a number for each engine; receives the time (s) and the engines that run."""


def saturation(_: float, samples: Sequence[EngineSample]) -> dict[str, float]:
    """Return `autellix_engine_saturation`."""
    return {sample.load.name: sample.load.saturation for sample in samples}


def waiting(_: float, samples: Sequence[EngineSample]) -> dict[str, float]:
    """Return the calls that wait at an engine, as `vllm:num_requests_waiting`."""
    return {sample.load.name: float(sample.load.waiting) for sample in samples}


def utilisation(_: float, samples: Sequence[EngineSample]) -> dict[str, float]:
    """Return the share of time with a kernel running, as DCGM's GPU utilisation."""
    return {sample.load.name: sample.busy_share for sample in samples}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """When engines are added and removed; times in seconds."""

    signal: Signal
    target: float
    """What the signal should be at an engine."""
    least: int
    most: int
    start_s: float = 120.0
    """From the decision to the first call: machine, image, weights."""
    window_s: float = 60.0
    """The signal is its mean over this time."""
    period_s: float = 15.0
    """Between two decisions."""
    down_s: float = 300.0
    """For so long, fewer engines must have been enough."""
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least must be from 1 to most ({self.most}), not {self.least}")
        for name in ("target", "period_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, not {getattr(self, name)}")


class Autoscaler:
    """Decides how many engines there should be."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        periods = max(1, round(scaling.window_s / scaling.period_s))
        self._values: deque[Mapping[str, float]] = deque(maxlen=periods)
        self._wanted: deque[tuple[float, int]] = deque()

    def engines(self, now: float, samples: Sequence[EngineSample], present: int) -> int:
        """Return the number of engines to have, of which `present` are there or start."""
        scaling = self._scaling
        self._values.append(scaling.signal(now, samples))
        total = self._sum_of_means()
        is_close = abs(total / (scaling.target * present) - 1.0) <= scaling.tolerance
        wanted = present if is_close else math.ceil(total / scaling.target)
        wanted = min(max(wanted, scaling.least), scaling.most)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - scaling.down_s:
            self._wanted.popleft()
        return wanted if wanted >= present else min(present, max(number for _, number in self._wanted))

    def _sum_of_means(self) -> float:
        by_engine: defaultdict[str, list[float]] = defaultdict(list)
        for values in self._values:
            for name, value in values.items():
                by_engine[name].append(value)
        return sum(map(fmean, by_engine.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMoment:
    """A fleet at one decision."""

    now: float
    accepting: int
    """Engines that take calls."""
    starting: int
    draining: int
    programs: int
    """Those in progress."""
    running: int
    """Calls."""
    waiting: int
    """Calls."""
    saturation: float
    """Of all engines together."""

    @property
    def engines(self) -> int:
        """All that are paid for."""
        return self.accepting + self.starting + self.draining


class ScalingFleet:
    """The engines of a simulation that take calls, start and drain, by name."""

    def __init__(self, scaling: Scaling, engines: Iterable[str]) -> None:
        self.scaling = scaling
        self.draining: dict[str, None] = {}
        """Those that get no further call, the first to drain first."""
        self.moments: list[FleetMoment] = []
        self._accepting = list(engines)
        self._starting: dict[str, float] = {}
        """When each is ready, the oldest first."""
        self._numbers = count(len(self._accepting))
        self._autoscaler = Autoscaler(scaling)
        self._busy_s: dict[str, float] = {}

    def take_ready(self, now: float) -> list[str]:
        """Return the engines that have started; they take calls from now on."""
        ready = [name for name, at_s in self._starting.items() if at_s <= now]
        for name in ready:
            del self._starting[name]
        self._accepting += ready
        return ready

    def on_left(self, name: str) -> None:
        """Remove a drained engine."""
        del self.draining[name]
        self._busy_s.pop(name, None)

    def review(self, now: float, engines: Mapping[str, tuple[EngineLoad, float]], programs: int) -> None:
        """Decide what starts and what drains, by each engine's load and its busy time (s) so far."""
        samples = [
            EngineSample(load, (busy_s - self._busy_s.get(name, 0.0)) / self.scaling.period_s)
            for name, (load, busy_s) in engines.items()
        ]
        self._busy_s = {name: busy_s for name, (_, busy_s) in engines.items()}
        present = len(self._accepting) + len(self._starting)
        wanted = self._autoscaler.engines(now, samples, present)
        for _ in range(wanted - present - len(self.draining)):
            self._starting[f"engine{next(self._numbers)}"] = now + self.scaling.start_s
        for _ in range(present - wanted):
            self._remove_youngest()
        self.moments.append(
            FleetMoment(
                now=now,
                accepting=len(self._accepting),
                starting=len(self._starting),
                draining=len(self.draining),
                programs=programs,
                running=sum(sample.load.running for sample in samples),
                waiting=sum(sample.load.waiting for sample in samples),
                saturation=sum(saturation(now, samples).values()),
            )
        )

    def _remove_youngest(self) -> None:
        if self._starting:
            self._starting.popitem()
        else:
            self.draining[self._accepting.pop()] = None
