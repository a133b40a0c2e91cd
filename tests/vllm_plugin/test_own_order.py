"""Engines that our scheduler leaves to vLLM's own order, and what gateways learn of it."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tests.report_links import SECRET, free_address, linked

from autellix_backend.engines.report_client import LinkState
from autellix_backend.vllm_plugin import own_order
from autellix_backend.vllm_plugin.own_order import report_own_order
from autellix_backend.vllm_plugin.report_server import ReportServer
from autellix_backend.vllm_plugin.scheduler import AutellixScheduler


class StockScheduler:
    """In place of vLLM's."""

    def __init__(self, vllm_config: Any) -> None: ...


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_order, "vllm_version", lambda: "0.99.0")
    monkeypatch.setenv("AUTELLIX_ENGINE_REPORT_SECRET", SECRET)


def config_with(**section: Any) -> Any:
    return SimpleNamespace(
        additional_config={"autellix": section},
        diffusion_config=None,
        parallel_config=SimpleNamespace(data_parallel_rank=0),
        scheduler_config=SimpleNamespace(
            policy="fcfs", max_num_seqs=4, async_scheduling=True, get_scheduler_cls=lambda: StockScheduler
        ),
    )


async def test_gateways_learn_why(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    with caplog.at_level(logging.WARNING, "vllm.autellix"):
        server = report_own_order(config_with(report_address=address), "this vLLM 0.99.0 lacks waiting")
    assert caplog.messages == [
        "Autellix: this vLLM 0.99.0 lacks waiting; this engine goes on in vLLM's own order"
    ]
    assert server is not None
    try:
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.UP)
            facts = gateway.client.degraded
            assert facts is not None
            assert (facts.vllm, facts.policy, facts.slots) == ("0.99.0", "fcfs", 4)
            assert facts.problem == "this vLLM 0.99.0 lacks waiting"
            assert gateway.client.runs_own_order
    finally:
        server.close()


@pytest.mark.parametrize("section", [{}, {"report_address": "nowhere"}])
def test_the_engine_starts_without_a_report_address_and_with_a_wrong_one(section: dict[str, Any]) -> None:
    assert report_own_order(config_with(**section), "no") is None


async def test_a_release_that_has_moved_its_modules_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our scheduler cannot even be imported there."""
    address, servers = free_address(), list[ReportServer]()

    def make(*args: Any) -> ReportServer:
        servers.append(ReportServer(*args))
        return servers[-1]

    monkeypatch.setitem(sys.modules, "autellix_backend.vllm_plugin.program_scheduler", None)
    monkeypatch.setattr(own_order, "ReportServer", make)
    assert isinstance(AutellixScheduler(config_with(report_address=address)), StockScheduler)
    try:
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.UP)
            assert gateway.client.degraded is not None
            assert gateway.client.degraded.problem.startswith("not for this vLLM (")
    finally:
        servers[0].close()
