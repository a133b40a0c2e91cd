"""Recent programs under other policies: a real simulation, and what stands in its way."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.snapshots import snapshot

from autellix_backend.console.http import replay
from autellix_backend.gateway.tenancy.tenants import key_line
from autellix_backend.install import pip_install

REPLAY = "/autellix/v1/replay"


async def post(rig: Any, key: str | None = None) -> tuple[int, dict[str, Any]]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with rig.client.post(rig.url + REPLAY, headers=headers) as response:
        return response.status, await response.json()


async def end_programs(rig: Any, tell: Any) -> None:
    for number in range(3):
        headers = {"x-autellix-program-id": f"run-{number}", "x-autellix-program-name": "chat"}
        await rig.chat({**headers, "x-autellix-final": "true"})
    await rig.settled()
    await tell(rig, snapshot(slots=1, kv_total_blocks=10_000))


@pytest.mark.timeout(120)
async def test_programs_that_ended_are_simulated_under_the_other_policies(serve: Any, tell: Any) -> None:
    async with serve(policy="boost") as rig:
        await end_programs(rig, tell)
        status, answer = await post(rig)

    assert status == 200, answer
    assert (answer["policy"], answer["left_out"]) == ("boost", 0)
    assert {(each["program_id"], each["name"]) for each in answer["programs"]} == {
        (f"run-{number}", "chat") for number in range(3)
    }
    assert [each["policy"] for each in answer["policies"]] == ["fcfs", "plas"]
    assert all(len(each["estimated_s"]) == 3 for each in answer["policies"])
    assert answer["simulated_over_measured"] > 0


async def test_without_programs_there_is_nothing_to_replay(serve: Any) -> None:
    async with serve() as rig:
        status, answer = await post(rig)

    assert (status, answer["error"]["message"]) == (409, "no program has ended in the last 10 minutes")


async def test_replays_run_one_at_a_time(serve: Any, tell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ending, began = asyncio.Event(), asyncio.Event()

    async def simulate(_document: bytes) -> bytes:
        began.set()
        await ending.wait()
        return b"{}"

    monkeypatch.setattr(replay, "_simulate", simulate)
    async with serve() as rig:
        await end_programs(rig, tell)
        first = asyncio.create_task(post(rig))
        await began.wait()
        status, answer = await post(rig)
        ending.set()

        assert (status, (await first)[0]) == (409, 200)
        assert "another replay is running" in answer["error"]["message"]


async def test_a_simulation_is_ended_after_its_time(
    serve: Any, tell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "TIMEOUT_S", 0.01)
    async with serve() as rig:
        await end_programs(rig, tell)
        status, answer = await post(rig)

    assert status == 409
    assert "replay fewer minutes" in answer["error"]["message"]


async def test_the_simulators_reason_is_shown(serve: Any) -> None:
    """Its engine reports no slots."""
    async with serve(reports=False) as rig:
        await rig.chat({"x-autellix-program-id": "run", "x-autellix-final": "true"})
        await rig.settled()
        status, answer = await post(rig)

    assert status == 409
    assert "no engine reports its slots" in answer["error"]["message"]


async def test_where_the_laboratory_is_not_installed_it_says_what_to_type(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    async with serve() as rig:
        status, answer = await post(rig)

    assert status == 409
    assert pip_install("lab") in answer["error"]["message"]


async def test_only_operators_replay(serve: Any, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(f'[[tenant]]\nname = "one"\nkeys = ["{key_line("one")}"]\n')
    async with serve(tenants_file=tenants) as rig:
        assert (await post(rig, "one"))[0] == 403
