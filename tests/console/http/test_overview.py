"""The overview: what programs wait for now equals the rows of the programs, and calls reach the samples."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from tests.console.http.test_programs import SLOW, start_calls, stop
from tests.gateway.snapshots import open_call, overview, snapshot, standing

from autellix_backend.console.explain.current_load import current_load, moment_of
from autellix_backend.console.explain.overview import overview_of
from autellix_backend.gateway.tenancy.tenants import key_line
from autellix_backend.reports.snapshot import AdmissionSnapshot, DemandSnapshot

OVERVIEW = "/autellix/v1/overview"
PROGRAMS = "/autellix/v1/programs"


async def test_the_states_are_those_of_the_programs(serve: Any, tell: Any) -> None:
    async with serve(SLOW) as rig:
        await rig.chat({"x-autellix-program-id": "talks"})
        already = len(rig.engine.calls)
        assert already == 1
        rig.engine.requests.clear()
        tasks, keys = await start_calls(rig, "runs", "queues", "large")
        told = snapshot(
            standing("runs", place=1, level=1, is_running=True, call_id=keys["runs"]),
            standing("queues", place=2, level=1, call_id=keys["queues"], since_s=6.0),
            standing("large", place=3, level=1, call_id=keys["large"], since_s=60.0, inactive_place=1),
            slots=1,
            kv_total_blocks=100,
            kv_used_blocks=40,
            admission=AdmissionSnapshot(2, 1, 1000, 1500),
            demand=DemandSnapshot(900, 1, 1.0, ()),
        )
        await tell(rig, told)
        now = (await rig.get(OVERVIEW))[1]["now"]
        listed = (await rig.get(PROGRAMS))[1]["programs"]

        counts = {each["state"]: each["programs"] for each in now["states"]}
        assert counts.pop("at_another_gateway") == 0
        assert counts == dict(Counter(row["state"] for row in listed))
        assert set(counts.values()) == {1}
        longest = {each["state"]: each["longest_wait_s"] for each in now["states"]}
        assert longest["in_engine"] is longest["between_calls"] is None
        assert 6.0 <= longest["waiting_for_slot"] < 60.0 <= longest["waiting_for_memory"]
        assert (now["programs"], now["engines"], now["engines_up"]) == (4, 1, 1)
        assert (now["slots"], now["running"], now["waiting"]) == (1, 1, 2)
        kv = now["kv"]
        assert (kv["total_tokens"], kv["held_tokens"], kv["kept_tokens"]) == (1600, 640, 360)
        assert (kv["reserve_tokens"], kv["waiting_tokens"]) == (100, 900)
        assert (await rig.get("/autellix/v1/engines"))[1]["engines"][0]["kv"] == kv
        await stop(tasks)


async def test_calls_and_programs_reach_the_samples(serve: Any) -> None:
    async with serve() as rig:
        gateway, console = rig.app.state.gateway, rig.app.state.console
        await rig.chat({"x-autellix-program-id": "short", "x-autellix-final": "true"})
        await rig.settled()
        console.load.sample(moment_of(await current_load(gateway.store, overview_of(gateway))))
        load = (await rig.get(OVERVIEW + "?minutes=1"))[1]["load"]

        assert (load["totals"]["calls"], load["totals"]["programs"]) == (1, 1)
        assert load["totals"]["output_tokens_per_s"] > 0
        assert {len(values) for values in load["values"].values()} == {len(load["times"])}
        assert [value for value in load["values"]["in_engine"] if value is not None] == [0.0]
        # An engine without a snapshot has no memory to show.
        assert set(load["values"]["kv_held"]) == {None}


async def test_others_advance_while_many_programs_are_counted(serve: Any) -> None:
    async with serve() as rig:
        many = overview(*(open_call(f"key-{number}", f"p{number}") for number in range(5000)))
        counting = asyncio.create_task(current_load(rig.store, many))
        turns = 0
        while not counting.done():
            await asyncio.sleep(0)
            turns += 1
        assert (await counting).programs == 5000
        assert turns > 10


async def test_a_tenant_sees_no_load_of_others(serve: Any, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(
        f'[[tenant]]\nname = "one"\nkeys = ["{key_line("one")}"]\n'
        f'[[tenant]]\nname = "boss"\nkeys = ["{key_line("boss")}"]\nadmin = true\n'
    )
    async with serve(tenants_file=tenants) as rig:
        for key, expected in (("one", 403), ("boss", 200), ("nobody", 401)):
            headers = {"authorization": f"Bearer {key}"}
            async with rig.client.get(rig.url + OVERVIEW, headers=headers) as response:
                assert response.status == expected


async def test_a_range_beyond_what_is_kept_is_an_error(serve: Any) -> None:
    async with serve() as rig:
        assert (await rig.get(OVERVIEW + "?minutes=360"))[0] == 200
        assert (await rig.get(OVERVIEW + "?minutes=361"))[0] == 400
