"""Ended programs over HTTP and on the command line."""

from __future__ import annotations

from typing import Any

PROGRAMS = "/autellix/v1/programs"
HISTORY = "/autellix/v1/history"


async def end(rig: Any, program_id: str, calls: int = 1) -> None:
    for number in range(calls):
        headers = {"X-Autellix-Program-ID": program_id, "X-Autellix-Program-Name": "react"}
        if number == calls - 1:
            headers["X-Autellix-Final"] = "true"
        await rig.chat(headers)
    await rig.settled()


async def test_a_program_that_has_ended_is_known_with_where_its_time_went(serve: Any) -> None:
    async with serve() as rig:
        await end(rig, "first", calls=2)
        await end(rig, "second")
        assert (await rig.get(PROGRAMS + "/first"))[0] == 404

        _, listed = await rig.get(HISTORY)
        assert [row["program_id"] for row in listed["programs"]] == ["second", "first"]
        row = listed["programs"][1]
        assert (row["name"], row["state"], row["finished_calls"], row["threads"]) == ("react", "ended", 2, 1)
        assert row["output_tokens"] > 0
        _, detail = await rig.get(HISTORY + "/first")
        assert len(detail["calls"]) == 2
        parts = detail["spent"]
        total_s = sum(value for name, value in parts.items() if name != "critical_path")
        assert abs(total_s - detail["duration_s"]) < 1e-6
        _, why = await rig.get(PROGRAMS + "/first/why")
        assert (why["state"], why["text"], why["calls"]) == ("ended", detail["text"], [])
        assert why["text"].startswith("2 calls in ")


async def test_a_listing_continues_where_the_last_answer_ended(serve: Any) -> None:
    async with serve() as rig:
        names = [f"program-{number}" for number in range(5)]
        for name in names:
            await end(rig, name)
        seen: list[str] = []
        cursor = ""
        while cursor is not None:
            _, page = await rig.get(f"{HISTORY}?limit=2" + (f"&after={cursor}" if cursor else ""))
            seen += [row["program_id"] for row in page["programs"]]
            # One that ends meanwhile comes before all others, and moves none of them.
            await end(rig, f"meanwhile-{len(seen)}")
            cursor = page["next"]
            assert page["has_more"] == (cursor is not None)
        assert seen == names[::-1]


async def test_what_no_listing_gave_is_no_cursor(serve: Any) -> None:
    async with serve() as rig:
        for cursor in ("yesterday", "soon:p", "17"):
            status, answer = await rig.get(f"{HISTORY}?after={cursor}")
            assert (status, answer["error"]["param"]) == (400, "after")


async def test_limits_and_unknown_programs_are_told(serve: Any) -> None:
    async with serve() as rig:
        await end(rig, "first")
        await end(rig, "second")
        _, listed = await rig.get(HISTORY + "?limit=1")
        assert ([row["program_id"] for row in listed["programs"]], listed["has_more"]) == (["second"], True)
        status, answer = await rig.get(HISTORY + "?limit=0")
        assert (status, answer["error"]["param"]) == (400, "limit")
        status, answer = await rig.get(HISTORY + "/nobody")
        assert (status, answer["error"]["message"]) == (404, "the history has no program 'nobody'")
        status, answer = await rig.get(PROGRAMS + "/nobody/why")
        assert (status, answer["error"]["message"]) == (404, "there is no program 'nobody'")


async def test_a_settled_call_is_explained_by_its_id(serve: Any) -> None:
    async with serve() as rig:
        await rig.chat({"X-Autellix-Program-ID": "living", "X-Autellix-Call-ID": "one"})
        await end(rig, "ended")
        await rig.settled()
        status, found = await rig.get("/autellix/v1/calls/one/why")
        assert (status, found["program_id"], found["prefix_break"]) == (200, "living", None)
        assert "prefix cache" in found["text"]
        ended = (await rig.get(HISTORY + "/ended"))[1]["calls"][0]
        assert (await rig.get(f"/autellix/v1/calls/{ended['call_id']}/why"))[1]["program_id"] == "ended"
        status, error = await rig.get("/autellix/v1/calls/none/why")
        assert (status, error["error"]["param"]) == (404, "call_id")
