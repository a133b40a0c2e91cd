"""What each call of a program did when, over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.engine import FakeBehaviour, Fault
from tests.gateway.snapshots import NOW, open_call, overview, program, snapshot, standing

from autellix_backend.console.http.timeline import MAX_OPEN_CALLS, living_program, open_spans
from autellix_backend.gateway.tenancy.tenants import key_line

PROGRAMS = "/autellix/v1/programs"
BEGAN = NOW - 5.0


def parts(*, last: Any = None, is_queued: bool = False, **fields: Any) -> list[tuple[str, float]]:
    call = open_call(**fields)
    view = overview(call, last=last, is_queued=lambda _: is_queued)
    found = open_spans(call, view, origin_s=BEGAN - 1.0)
    assert [span.start_s for span in found] == [1.0, *(span.finish_s for span in found[:-1])]
    return [(span.kind.value, round(span.finish_s - 1.0, 6)) for span in found]


def in_engine(**fields: Any) -> Any:
    """Return a snapshot, 0.3 s old, with the call in it."""
    return snapshot(standing("p", place=1, level=2, **fields))


def test_a_call_at_the_gateway_waits() -> None:
    assert parts(is_queued=True) == [("waiting", 5.0)]


def test_a_call_of_an_engine_that_tells_nothing_is_in_it() -> None:
    assert parts() == [("engine", 5.0)]
    assert parts(first_bytes_s=BEGAN + 2.0) == [("prefill", 2.0), ("decode", 5.0)]


def test_a_call_in_the_engine_waits_for_its_slot_or_for_memory() -> None:
    assert parts(last=in_engine(since_s=4.0)) == [("waiting", 5.0)]
    assert parts(last=in_engine(since_s=4.0, inactive_place=2)) == [("waiting", 0.7), ("inactive", 5.0)]


def test_a_running_call_waited_before() -> None:
    told = in_engine(is_running=True, since_s=1.7)

    assert parts(last=told) == [("waiting", 3.0), ("engine", 5.0)]
    assert parts(last=told, first_bytes_s=BEGAN + 4.0) == [
        ("waiting", 3.0),
        ("prefill", 4.0),
        ("decode", 5.0),
    ]


def test_what_came_before_a_preemption_is_not_known() -> None:
    assert parts(last=in_engine(preemptions=1, since_s=1.7)) == [("engine", 3.0), ("preempted", 5.0)]
    assert parts(last=in_engine(preemptions=1, since_s=1.7, is_running=True)) == [("engine", 5.0)]


def test_a_snapshot_that_is_older_than_the_call_does_not_reach_before_it() -> None:
    assert parts(last=in_engine(is_running=True, since_s=60.0)) == [("engine", 5.0)]


def test_open_calls_are_bounded() -> None:
    calls = [open_call(f"key-{number}") for number in range(MAX_OPEN_CALLS + 3)]
    found, rows = living_program(program(), None, overview(*calls), wall_s=1e9)

    assert (len(found.calls), len(rows), found.left_out) == (MAX_OPEN_CALLS, MAX_OPEN_CALLS, 3)
    assert found.began_at_s == 1e9 - (NOW - 100.0)


async def test_the_timeline_of_a_program_goes_on_after_its_end(serve: Any) -> None:
    async with serve() as rig:
        await rig.chat({"X-Autellix-Program-ID": "run", "X-Autellix-Call-ID": "one"})
        await rig.settled()
        status, living = await rig.get(PROGRAMS + "/run/timeline")
        assert (status, living["state"]) == (200, "between_calls")
        final = {"X-Autellix-Final": "true", "X-Autellix-Interceptions": "search=1.5"}
        await rig.chat({"X-Autellix-Program-ID": "run", "X-Autellix-Call-ID": "two", **final})
        await rig.settled()
        status, ended = await rig.get(PROGRAMS + "/run/timeline")

        assert (status, ended["state"], ended["left_out"]) == (200, "ended", 0)
        assert ended["calls"][0] == living["calls"][0]
        assert [call["call_id"] for call in ended["calls"]] == ["one", "two"]
        assert ended["calls"][1]["tools"] == [["search", 1.5]]
        assert ended["spent"]["critical_path"] == ["one", "two"]
        assert all(call["state"] == "ended" and call["spans"] for call in ended["calls"])
        status, answer = await rig.get(PROGRAMS + "/nobody/timeline")
        assert (status, answer["error"]["message"]) == (404, "there is no program 'nobody'")


async def test_an_open_call_is_in_the_timeline(serve: Any, wait_until: Any) -> None:
    async with serve(FakeBehaviour(fault=Fault.HANG)) as rig:
        chat = asyncio.create_task(rig.chat({"X-Autellix-Program-ID": "run", "X-Autellix-Call-ID": "one"}))
        await wait_until(lambda: rig.engine.requests)
        _, timeline = await rig.get(PROGRAMS + "/run/timeline")

        [call] = timeline["calls"]
        assert (call["state"], call["outcome"], call["finish_s"]) == ("in_engine", None, None)
        assert call["spans"][-1]["kind"] == "engine"
        assert call["spans"][-1]["finish_s"] == timeline["duration_s"]
        chat.cancel()


@pytest.fixture
def tenants_file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(
        "".join(f'[[tenant]]\nname = "{name}"\nkeys = ["{key_line(name)}"]\n' for name in ("one", "other"))
        + f'[[tenant]]\nname = "boss"\nadmin = true\nkeys = ["{key_line("boss")}"]\n'
    )
    return path


async def test_a_tenant_sees_no_timeline_of_another(serve: Any, tenants_file: Path) -> None:
    async with serve(tenants_file=tenants_file) as rig:

        async def ask(key: str, program_id: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            url = f"{rig.url}{PROGRAMS}/{program_id}/timeline"
            async with rig.client.get(url, headers=headers) as response:
                return int(response.status)

        for final in ("false", "true"):
            headers = {"X-Autellix-Program-ID": "run", "authorization": "Bearer one"}
            await rig.chat({**headers, "X-Autellix-Final": final})
            await rig.settled()
            assert await ask("one", "run") == 200
            assert [await ask("other", name) for name in ("run", "one/run", "one%2Frun")] == [404] * 3
            assert await ask("boss", "one/run") == 200
            assert await ask("nobody", "run") == 401


async def test_a_timeline_holds_no_content(serve: Any) -> None:
    async with serve() as rig:
        secret = "the launch code is 0000"
        await rig.chat(
            {"X-Autellix-Program-ID": "run"}, messages=[{"role": "user", "content": secret}], user=secret
        )
        await rig.settled()
        _, timeline = await rig.get(PROGRAMS + "/run/timeline")

        text = json.dumps(timeline)
        assert "launch" not in text
        assert "token0" not in text
