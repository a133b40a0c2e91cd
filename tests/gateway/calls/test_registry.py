"""Calls begin and settle once, and settled calls reach the log, traces and metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.engine import FakeBehaviour, Fault
from tests.gateway.engine_reports import report_of
from tests.gateway.open_calls import assigned_call
from tests.observe.settled_calls import TRACEPARENT

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.calls.call import FURTHER_REPORTS
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.settled_call import Outcome
from autellix_backend.settings import ObserveSettings
from autellix_backend.stores.memory import MemoryStore


def make_registry(report_wait_s: float = 0.0) -> CallRegistry:
    store = MemoryStore(make_policy("fcfs"), program_idle_s=60.0, session_ttl_s=60.0)
    config = SchedulerConfig(policy="fcfs")
    return CallRegistry(store, config, GatewayMetrics(), clock=lambda: 0.0, report_wait_s=report_wait_s)


async def test_subscribers_are_called_once_for_each_call_in_their_order() -> None:
    noted: list[tuple[str, str]] = []
    registry = make_registry()
    registry.subscribe(on_settled=lambda settled: noted.append(("settled", settled.start.key)))
    registry.subscribe(on_begun=lambda call: noted.append(("first", call.start.key)))
    registry.subscribe(
        on_begun=lambda call: noted.append(("second", call.start.key)),
        on_settled=lambda settled: noted.append(("last", settled.start.key)),
    )
    call = await registry.begin(assigned_call({}))
    receipt = await registry.settle(call, Outcome.OK, has_reports=False)

    assert await registry.settle(call, Outcome.ABORTED, has_reports=False) is receipt
    key = call.start.key
    assert noted == [("first", key), ("second", key), ("settled", key), ("last", key)]


async def test_an_engine_reports_its_own_calls_only_and_not_without_end() -> None:
    """The ids of calls can be guessed."""
    registry = make_registry()
    call = await registry.begin(assigned_call({}))
    report = report_of(call.engine_key)
    registry.on_report("fake-1", report)
    assert (call.reports, call.has_reports.is_set()) == ([], False)
    for _ in range(2 * FURTHER_REPORTS):
        registry.on_report("fake-0", report)
    assert call.has_reports.is_set()
    assert FURTHER_REPORTS < len(call.reports) < 2 * FURTHER_REPORTS
    await registry.settle(call, Outcome.OK, has_reports=False)


async def test_an_aborted_call_waits_for_the_step_that_it_was_in() -> None:
    registry = make_registry(report_wait_s=0.2)
    call = await registry.begin(assigned_call({}))
    settling = asyncio.create_task(registry.settle(call, Outcome.ABORTED, has_reports=True))
    # Longer than any other call waits.
    await asyncio.sleep(0.3)
    registry.on_report("fake-0", report_of(call.engine_key))
    assert not (await settling).estimated


def logged(serve: Any, path: Path, behaviour: FakeBehaviour, *, reports: bool = True, **fields: Any) -> Any:
    """Make one call; return its line in the log, and the gateway's metrics."""

    async def main() -> str:
        observe = ObserveSettings(call_log=path)
        async with serve(behaviour, observe=observe, reports=reports) as rig:
            headers = {
                "X-Autellix-Program-ID": "p",
                "X-Autellix-Program-Name": "react",
                "X-Autellix-Parent-IDs": "a,b",
                "X-Autellix-Interceptions": "search=0.5",
                "traceparent": TRACEPARENT,
            }
            body = {"model": "m", "messages": [{"role": "user", "content": "top secret"}], **fields}
            async with rig.client.post(
                rig.url + "/v1/chat/completions", json=body, headers=headers
            ) as answer:
                await answer.read()
            async with rig.client.get(rig.url + "/metrics") as response:
                return str(await response.text())

    metrics = asyncio.run(main())
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert "top secret" not in line
    assert "token0" not in line
    return json.loads(line), metrics


def test_a_streamed_call_is_logged_and_measured(serve: Any, tmp_path: Path) -> None:
    behaviour = FakeBehaviour(output_tokens=3, token_delay_s=0.01)
    line, metrics = logged(serve, tmp_path / "calls.jsonl", behaviour, stream=True)

    assert (line["program_id"], line["program_name"], line["outcome"]) == ("p", "react", "ok")
    assert (line["operation"], line["model"], line["is_streaming"]) == ("chat", "m", True)
    assert (line["parents"], line["tools"]) == (["a", "b"], [{"name": "search", "duration_s": 0.5}])
    assert (line["identity_source"], line["engine"]) == ("program-header", "fake-0")
    assert (line["output_tokens"], line["is_estimated"]) == (3, False)
    assert 0.01 <= line["first_token_s"] < line["duration_s"]
    assert line["trace_id"] == TRACEPARENT.split("-")[1]
    assert 'autellix_time_to_first_token_seconds_count{engine="fake-0",model="m"} 1.0' in metrics
    assert 'autellix_tokens_total{engine="fake-0",kind="output",model="m"} 3.0' in metrics
    assert 'autellix_engine_wait_seconds_count{level="1"} 1.0' in metrics


def test_an_answer_in_one_piece_has_no_first_token(serve: Any, tmp_path: Path) -> None:
    line, _ = logged(serve, tmp_path / "calls.jsonl", FakeBehaviour())

    assert (line["first_token_s"], line["is_streaming"]) == (None, False)


def test_a_call_that_failed_is_logged_too(serve: Any, tmp_path: Path) -> None:
    line, _ = logged(serve, tmp_path / "calls.jsonl", FakeBehaviour(fault=Fault.ERROR))

    assert (line["outcome"], line["prompt_tokens"], line["is_estimated"]) == ("engine_error", None, True)
    assert (line["status"], line["reason"]) == (500, "the fake engine was told to fail")


def test_without_reports_the_answers_own_counts_are_logged(serve: Any, tmp_path: Path) -> None:
    line, _ = logged(serve, tmp_path / "calls.jsonl", FakeBehaviour(), reports=False)

    assert (line["output_tokens"], line["is_estimated"]) == (4, True)
    assert (line["level"], line["preemptions"]) == (None, None)


def test_a_call_without_a_report_is_charged_by_its_tokens(serve: Any, tmp_path: Path) -> None:
    """The time in the engine, with the waiting there, is no measure of service."""
    behaviour = FakeBehaviour(fault=Fault.SLOW, slow_s=0.3)
    line, _ = logged(serve, tmp_path / "calls.jsonl", behaviour, reports=False)

    tokens = line["prompt_tokens"] + 2 * line["output_tokens"]
    assert line["service_s"] == pytest.approx(0.005 * tokens)
    assert line["duration_s"] > 0.3


def test_a_report_that_got_lost_costs_its_tokens(serve: Any, tmp_path: Path) -> None:
    behaviour = FakeBehaviour(fault=Fault.UNREPORTED)
    line, _ = logged(serve, tmp_path / "calls.jsonl", behaviour)

    assert (line["output_tokens"], line["is_estimated"]) == (4, True)
    assert line["service_s"] == pytest.approx(0.005 * (line["prompt_tokens"] + 8))
