"""The parent of several workers."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.workers.links import make_hub, workers_of

from autellix_backend.gateway.errors import ParentSilentError
from autellix_backend.gateway.workers.hub import METRICS
from autellix_backend.gateway.workers.others import OtherWorkers
from autellix_backend.observe.metrics import GatewayMetrics


def retries(page: bytes | None) -> str:
    assert page is not None
    return next(line for line in page.decode().splitlines() if line.startswith("autellix_upstream_retries_t"))


def counted() -> GatewayMetrics:
    metrics = GatewayMetrics()
    metrics.follow_store(lambda: None)
    metrics.retries.labels("e").inc(2)
    return metrics


async def test_every_worker_shows_the_same_metrics() -> None:
    async with workers_of(make_hub(2), 1, 2) as links:
        for link in links:
            OtherWorkers(link).answer(METRICS, lambda _nothing: counted().families())
        pages = [await OtherWorkers(link).metrics_page() for link in links]
    assert [retries(page) for page in pages] == ['autellix_upstream_retries_total{engine="e"} 4.0'] * 2


async def test_others_answer_and_a_silent_one_is_missing() -> None:
    async def never(_content: object) -> None:
        await asyncio.Event().wait()

    # The third has not started.
    async with workers_of(make_hub(4, answer_s=0.05), 1, 2, 4) as (first, second, fourth):
        second.handlers["name"] = lambda content: f"{content} from two"
        fourth.handlers["name"] = never
        assert await OtherWorkers(first).ask("name", "greetings") == {
            2: "greetings from two",
            3: None,
            4: None,
        }


async def test_alone_there_is_nobody_to_ask() -> None:
    alone = OtherWorkers()
    alone.answer("name", lambda _: "me")
    alone.tell("name", None)
    assert not alone.exist
    assert await alone.ask("name", None) == {}
    assert await alone.metrics_page() is None


async def test_without_its_parent_a_worker_shows_no_metrics() -> None:
    async with workers_of(make_hub(1), 1) as (link,):
        link.close()
        with pytest.raises(ParentSilentError):
            await OtherWorkers(link).metrics_page()
        assert await OtherWorkers(link).ask("name", None) == {}
