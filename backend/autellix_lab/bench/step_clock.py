"""An engine's steps as a clock: a machine with other work makes them longer, not more numerous.

A step that prefills is longer than others, so prefilled tokens count, too.

Arrivals in seconds bring more load to an engine that a busy machine slows down, and at twice the capacity
that doubles the difference. On this clock programs arrive when the engine has made so many steps.
"""

from __future__ import annotations

import asyncio
import bisect
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp

PERIOD_S = 0.1
"""Between two samples; a reading costs vLLM about 5 ms of CPU time."""
TIMEOUT_S = 60.0
PREFILLED_TOKENS = 450
"""So many count as one more step: on two idle cores, that fits the times of the demo's rounds under both
policies (`docs/demo.md`). Other work makes prefill dearer (160), as it uses all cores and the rest of a step
hardly more than one. There, steps understate what a policy gains that prefills less."""
STILL_STEPS = 100
"""In the usual time of so many steps an engine with calls makes one, also on a busy machine."""
SAMPLES = "samples"
"""Key of the load generator's last line, which has the samples of the run."""
_STEPS, _TOKENS, _GENERATED = (
    "iteration_tokens_total_count",
    "iteration_tokens_total_sum",
    "generation_tokens_total",
)
"""vLLM's own counts: steps that generated a token, tokens that they computed, and those generated."""
_COUNTS = re.compile(rf"^vllm:({_STEPS}|{_TOKENS}|{_GENERATED})(?:{{.*}})? (\S+)$", re.MULTILINE)

Sample = tuple[float, float]
"""A time (s from the start of the run) and the steps until then."""


class StepClock:
    """The steps of an engine since the start of a run.

    An engine without calls makes none. Then the clock advances as if it made them in their usual time, so
    that the next program arrives. So it does once an engine with calls has stood still for long: its
    scheduler may wait for a program whose tool answers on this clock.
    """

    def __init__(self, read: Callable[[], Awaitable[float]], now: Callable[[], float], step_s: float) -> None:
        """Make a clock that `run` starts.

        Args:
            read: Returns the steps that the engine has made since it started.
            now: Returns the seconds since the start of the run.
            step_s: The usual time of a step; infinite: the clock stands while the engine is idle.
        """
        self.samples: list[Sample] = []
        self._read = read
        self._now = now
        self._step_s = step_s
        self._count = 0.0
        self._open_calls = 0
        self._is_idle = True
        self._last_step_s = 0.0
        """When the engine was last seen to have made a step."""
        self._sampled = asyncio.Event()

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(PERIOD_S)

    async def sample(self) -> None:
        """Read the engine's count."""
        count = await self._read()
        now_s = self._now()
        if not self.samples:
            self.samples.append((now_s, 0.0))
        else:
            last_s, steps = self.samples[-1]
            made = count - self._count
            if made:
                self._last_step_s = now_s
            elif self._is_idle or now_s - self._last_step_s > STILL_STEPS * self._step_s:
                made = (now_s - last_s) / self._step_s
            self.samples.append((now_s, steps + made))
        self._count = count
        self._is_idle = not self._open_calls
        self._sampled.set()
        self._sampled = asyncio.Event()

    async def reach(self, steps: float) -> None:
        """Return once the engine has made so many steps since the start."""
        while not self.samples or self.samples[-1][1] < steps:
            await self._sampled.wait()

    async def wait(self, steps: float) -> None:
        """Return once the engine has made so many more steps."""
        await self.reach(self.samples[-1][1] + steps)

    @contextmanager
    def open_call(self) -> Iterator[None]:
        """Count a call as open in the block: an engine with open calls is not idle."""
        self._open_calls += 1
        self._is_idle = False
        try:
            yield
        finally:
            self._open_calls -= 1


def steps_at(samples: Sequence[Sample], time_s: float) -> float:
    """Return the steps at a time between the first sample and the last, in proportion between two."""
    after = min(max(1, bisect.bisect_left(samples, (time_s,))), len(samples) - 1)
    (begin_s, begin), (end_s, end) = samples[after - 1], samples[after]
    share = (time_s - begin_s) / (end_s - begin_s) if end_s > begin_s else 1.0
    return begin + min(1.0, max(0.0, share)) * (end - begin)


@dataclass(frozen=True, slots=True)
class EngineWork:
    """What an engine has done since it started."""

    steps: float
    """Those that generated a token."""
    prefilled_tokens: float


def engine_work(metrics: str) -> EngineWork:
    """Return the work of a vLLM server, over all its ranks, from the text of its metrics.

    Raises:
        ValueError: if they have no such counts.
    """
    totals = dict.fromkeys((_STEPS, _TOKENS, _GENERATED), 0.0)
    found = _COUNTS.findall(metrics)
    if not found:
        raise ValueError("has no vllm:iteration_tokens_total")
    for name, value in found:
        totals[name] += float(value)
    return EngineWork(totals[_STEPS], totals[_TOKENS] - totals[_GENERATED])


def step_reader(session: aiohttp.ClientSession, engine_url: str) -> Callable[[], Awaitable[float]]:
    """Return a function that reads the steps of a vLLM server, over all its ranks, in its metrics.

    The function raises `ValueError` if the server does not count steps, and `aiohttp.ClientError` if it does
    not answer.
    """

    async def read() -> float:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with session.get(f"{engine_url}/metrics", timeout=timeout) as response:
            text = await response.text()
        try:
            work = engine_work(text)
        except ValueError as error:
            raise ValueError(f"{engine_url}/metrics {error}") from None
        return work.steps + work.prefilled_tokens / PREFILLED_TOKENS

    return read
