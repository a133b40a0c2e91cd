"""The parent of several workers: it counts limits, merges metrics, and forwards questions and events.

Every worker has one link to the parent, and none to the others. Answers come within a deadline: the part of a
worker that hangs or has died is missing, and the worker is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from autellix_backend.gateway.workers.limits import LimitKeeper
from autellix_backend.gateway.workers.link import Link, LinkLostError
from autellix_backend.gateway.workers.merged_metrics import MetricsOfWorkers
from autellix_backend.observe.metric_families import MetricFamily

ASK_OTHERS, METRICS, PAGE, EVENT, EVENTS_WANTED = "ask_others", "metrics", "page", "event", "events_wanted"
WORKER_ANSWER_S = 1.0
"""How long a worker may take to answer, which it does from memory."""


class Hub:
    """Holds the links to all workers."""

    def __init__(self, workers: int, keeper: LimitKeeper, *, answer_s: float = WORKER_ANSWER_S) -> None:
        """Expect this many workers, numbered from 1, and each answer within `answer_s`."""
        self._answer_s = answer_s
        self._numbers = range(1, workers + 1)
        self._keeper = keeper
        self._metrics = MetricsOfWorkers()
        self._links: dict[int, Link] = {}
        self._listening: set[int] = set()
        """The workers with subscribers to events."""

    async def serve(self, worker: int, link: Link) -> None:
        """Serve a worker's messages until it ends."""
        link.handlers.update(self._keeper.handlers(worker))
        link.handlers[ASK_OTHERS] = lambda content: self._ask_others(worker, *content)
        link.handlers[PAGE] = lambda _nothing: self._page()
        link.handlers[EVENTS_WANTED] = lambda is_wanted: self._on_events_wanted(worker, is_wanted=is_wanted)
        link.handlers[EVENT] = lambda event: self._on_event(worker, event)
        self._links[worker] = link
        try:
            await link.serve()
        finally:
            del self._links[worker]
            self._keeper.on_ended(worker)
            self._metrics.on_ended(worker)
            self._on_events_wanted(worker, is_wanted=False)

    async def _page(self) -> bytes:
        answers = await self._ask(self._numbers, METRICS, None)
        return self._metrics.page(
            {
                worker: None if answer is None else msgspec.convert(answer, list[MetricFamily])
                for worker, answer in answers.items()
            }
        )

    async def _ask_others(self, worker: int, kind: str, content: Any) -> Mapping[int, Any]:
        return await self._ask([number for number in self._numbers if number != worker], kind, content)

    async def _ask(self, workers: range | list[int], kind: str, content: Any) -> dict[int, Any]:
        """Return the workers' answers by number; None for one that does not answer."""
        answers = await asyncio.gather(*(self._answer(worker, kind, content) for worker in workers))
        return dict(zip(workers, answers, strict=True))

    async def _answer(self, worker: int, kind: str, content: Any) -> Any:
        link = self._links.get(worker)
        if link is None:
            return None
        try:
            return await link.ask(kind, content, self._answer_s)
        except (LinkLostError, TimeoutError):
            return None

    def _on_events_wanted(self, worker: int, *, is_wanted: bool) -> None:
        if is_wanted:
            self._listening.add(worker)
        else:
            self._listening.discard(worker)
        for number, link in self._links.items():
            link.tell(EVENTS_WANTED, bool(self._listening - {number}))

    def _on_event(self, worker: int, event: Any) -> None:
        for number in self._listening - {worker}:
            self._links[number].tell(EVENT, event, may_be_lost=True)
