"""The operators' view of programs over HTTP, with snapshots as an engine sends them."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fakes.engine import FakeBehaviour
from tests.gateway.snapshots import snapshot, standing
from tests.waiting import PATIENCE_S

from autellix_backend.reports.snapshot import CallSnapshot

PROGRAMS = "/autellix/v1/programs"
ENGINES = "/autellix/v1/engines"
SLOW = FakeBehaviour(output_tokens=1000, token_delay_s=0.01)


async def start_calls(rig: Any, *program_ids: str) -> tuple[list[asyncio.Task[Any]], dict[str, str]]:
    """Begin one call of each program; return the calls, and their ids in the engine."""
    tasks = [
        asyncio.create_task(rig.chat({"X-Autellix-Program-ID": program_id})) for program_id in program_ids
    ]
    await rig.engine.wait_until(lambda: len(rig.engine.calls) == len(program_ids))
    sent = [request.json["vllm_xargs"] for request in rig.engine.calls]
    return tasks, {xargs["autellix_program"]: xargs["autellix_call"] for xargs in sent}


async def stop(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def two_programs(keys: dict[str, str]) -> tuple[CallSnapshot, CallSnapshot]:
    return (
        standing("fast", place=1, level=1, is_running=True, kv_blocks=3, call_id=keys["fast"]),
        standing("slow", place=2, level=2, call_id=keys["slow"], promotion_s=7.0),
    )


async def test_the_table_and_the_reasons_follow_the_engines_snapshots(serve: Any, tell: Any) -> None:
    async with serve(SLOW) as rig:
        tasks, keys = await start_calls(rig, "fast", "slow")
        await tell(rig, snapshot(*two_programs(keys), slots=1))
        listed = (await rig.get(PROGRAMS))[1]
        by_id = {shown["program_id"]: shown for shown in listed["programs"]}
        assert (by_id["fast"]["state"], by_id["slow"]["state"]) == ("in_engine", "waiting_for_slot")
        assert (by_id["fast"]["kv_share"], by_id["slow"]["level"]) == (0.25, 2)
        assert (by_id["slow"]["state_text"], by_id["slow"]["wait_s"] >= 4.2) == ("waiting for a slot", True)
        (waiting,) = (await rig.get(PROGRAMS + "?state=waiting_for_slot"))[1]["programs"]
        assert waiting["program_id"] == "slow"
        why = (await rig.get(PROGRAMS + "/slow/why"))[1]
        (call,) = why["calls"]
        assert (why["state"], call["state"], call["level"], call["promoted_in_s"]) == (
            "waiting_for_slot",
            "waiting_for_slot",
            2,
            7.0,
        )
        assert [(ahead["program_id"], ahead["level"]) for ahead in call["programs_ahead"]] == [("fast", 1)]
        assert "Ahead of it: fast (level 1," in call["text"]
        shown = (await rig.get(PROGRAMS + "/slow"))[1]
        assert [call["state"] for call in shown["calls"]] == ["waiting_for_slot"]
        (engine,) = (await rig.get(ENGINES))[1]["engines"]
        assert (engine["running"], engine["waiting"], engine["slots"]) == (1, 1, 1)
        assert (engine["kv_share"], engine["open_calls"]) == (0.5, 2)
        assert 0 <= engine["snapshot_age_s"] < PATIENCE_S
        await stop(tasks)


async def test_a_dead_engines_last_snapshot_is_not_shown(serve: Any, tell: Any) -> None:
    async with serve() as rig:
        await tell(rig, snapshot(slots=1))
        await rig.engine.kill("it ended")
        (engine,) = (await rig.get(ENGINES))[1]["engines"]
        assert (engine["running"], engine["snapshot_age_s"]) == (None, None)
        assert (engine["is_alive"], engine["failure"]) == (False, "it ended")


async def test_an_idle_program_and_an_unknown_one(serve: Any) -> None:
    async with serve() as rig:
        await rig.chat({"X-Autellix-Program-ID": "a/b", "X-Autellix-Interceptions": "search=0.5"})
        status, why = await rig.get(PROGRAMS + "/a/b/why")
        assert (status, why["state"], why["calls"]) == (200, "between_calls", [])
        assert "search (0.50 s)" in why["text"]
        shown = (await rig.get(PROGRAMS + "/a/b"))[1]
        assert (shown["state"], shown["finished_calls"], shown["output_tokens"]) == ("between_calls", 1, 4)
        assert shown["critical_path_s"] > 0
        for path in ("/nobody", "/nobody/why"):
            status, error = await rig.get(PROGRAMS + path)
            assert (status, error["error"]["param"]) == (404, "program_id")


async def test_active_programs_come_first_and_the_limit_holds(serve: Any) -> None:
    async with serve() as rig:
        for number in range(3):
            await rig.chat({"X-Autellix-Program-ID": f"p{number}"})
        listed = (await rig.get(PROGRAMS + "?limit=2"))[1]
        assert [shown["program_id"] for shown in listed["programs"]] == ["p0", "p1"]
        assert listed["has_more"] is True
        assert (await rig.get(PROGRAMS + "?limit=3"))[1]["has_more"] is False
        idle = (await rig.get(PROGRAMS + "?state=between_calls&limit=1"))[1]
        assert [shown["program_id"] for shown in idle["programs"]] == ["p0"]
        assert (await rig.get(PROGRAMS + "?state=in_engine"))[1]["programs"] == []
        assert (await rig.get(PROGRAMS + "?state=ended"))[1] == {
            "programs": [],
            "has_more": False,
            "next": None,
        }


async def test_programs_are_listed_by_their_group(serve: Any) -> None:
    async with serve() as rig:
        for program, group in (("a", "g1"), ("b", "g2"), ("c", "g2")):
            await rig.chat({"X-Autellix-Program-ID": program, "X-Autellix-Group": group})
        await rig.chat({"X-Autellix-Program-ID": "d"})
        shown = (await rig.get(PROGRAMS + "?group=g2"))[1]["programs"]
        # None of them has ended, so there is no time to compare with.
        told = [(row["program_id"], row["group"], row["over_median"]) for row in shown]
        assert told == [("b", "g2", None), ("c", "g2", None)]
        assert (await rig.get(PROGRAMS + "?group=g3"))[1]["programs"] == []
        assert (await rig.get(PROGRAMS + "/d"))[1]["group"] is None
        await rig.chat({"X-Autellix-Program-ID": "c", "X-Autellix-Final": "true"})
        (ended,) = (await rig.get("/autellix/v1/history?group=g2"))[1]["programs"]
        assert (ended["program_id"], ended["group"]) == ("c", "g2")


async def test_a_malformed_group_is_named(serve: Any) -> None:
    async with serve() as rig:
        for value in ("x" * 257, "\xe9", " "):
            error = (await rig.chat({"X-Autellix-Group": value}))["error"]
            assert (error["code"], error["param"]) == ("invalid_request", "X-Autellix-Group")
        for listing in (PROGRAMS, "/autellix/v1/history"):
            status, error = await rig.get(listing + "?group=" + "x" * 257)
            assert (status, error["error"]["param"]) == (400, "group")
        assert len(rig.app.state.console.groups) == 0


async def test_a_bad_query_is_named(serve: Any) -> None:
    bad = ("0", "-1", "x", "", "10001", "99999999999999999999", "Running", "²")
    # Pydantic takes these for numbers.
    odd = ("%205", "5%20", "5.0", "%2B5", "1_0")
    async with serve() as rig:
        for name, values in (("limit", bad + odd), ("state", bad)):
            for value in values:
                status, error = await rig.get(f"{PROGRAMS}?{name}={value}")
                assert (status, error["error"]["param"]) == (400, name)
                assert "expected" in error["error"]["message"]
