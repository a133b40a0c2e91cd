"""Sizes by class at the gateway: what is learned, what is shown, and to whom."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import pytest
from tests.gateway.conftest import CHAT, HELLO, until_async
from tests.redis_server import RedisServer
from tests.serving import listening

from autellix_backend.core.boost import work_of
from autellix_backend.core.classes import LEAST_PROGRAMS, LEAST_SCORED, ClassKey
from autellix_backend.gateway.app import create_app
from autellix_backend.gateway.classes import ProgramClasses, class_id, verdict
from autellix_backend.gateway.tenancy.tenants import DIGEST_PREFIX, Tenant, Tenants, key_line
from autellix_backend.settings import Settings, StoreSettings
from autellix_backend.stores.base import CallStart, Inherited, ProgramEnd
from autellix_lab.fakes.engine import FakeBehaviour, FakeEngine

CLASSES = "/autellix/v1/classes"


def begin(classes: ProgramClasses, program: str, *, prompt_tokens: int = 100, **inherited: Any) -> None:
    start = CallStart(
        key=program,
        call_id="c",
        program_id=program,
        class_id=class_id("", "chat") if program not in classes else None,
        prompt_tokens=prompt_tokens,
    )
    classes.on_call_begun(start, Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0, **inherited))


def learned(count: int = LEAST_PROGRAMS + LEAST_SCORED) -> ProgramClasses:
    """Return classes whose first prompts decide the sizes."""
    classes = ProgramClasses()
    for number in range(count):
        for prompt_tokens, work in ((100, 50.0), (5000, 9000.0)):
            program = f"{number}-{prompt_tokens}"
            begin(classes, program, prompt_tokens=prompt_tokens)
            classes.on_program_ended(ProgramEnd(program_id=program, work=work))
    return classes


def test_a_class_whose_first_prompts_decide_the_sizes_is_predicted_at_the_first_call() -> None:
    classes = learned()
    begin(classes, "p", finished_calls=1, work=70.0)

    (report,) = classes.reports()

    # At the second call nothing was scored yet.
    assert [(error.call, error.is_predicted) for error in report.errors if error.is_predicted] == [(1, True)]
    assert (classes.spread("") or 0.0) > 1


def test_programs_leave_with_their_end() -> None:
    classes = learned(3)
    begin(classes, "p")
    assert "p" in classes
    assert len(classes) == 1

    classes.on_program_ended(ProgramEnd(program_id="p", class_id="/chat", work=7.0))
    classes.on_program_ended(ProgramEnd(program_id="unknown"))

    assert "p" not in classes
    assert [report.ended for report in classes.reports()] == [7]


def test_a_call_of_a_program_without_a_class_is_skipped() -> None:
    classes = ProgramClasses()
    start = CallStart(key="k", call_id="k", program_id="p")
    classes.on_call_begun(start, Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0))
    assert len(classes) == 0


def test_ends_of_other_gateways_and_of_earlier_ones_teach_as_well() -> None:
    classes = ProgramClasses()
    for number in range(LEAST_PROGRAMS + 1):
        classes.on_program_ended(
            ProgramEnd(program_id=f"red/{number}", class_id="red/a/b", first_prompt_tokens=100, work=5.0)
        )

    (report,) = classes.reports("red")

    assert report.key == ClassKey("red", "a/b")
    assert (report.ended, report.median_work) == (LEAST_PROGRAMS + 1, 5.0)
    assert report.errors[0].scored == 1
    assert not list(classes.reports("blue"))


def test_the_verdict_states_the_reason() -> None:
    def of(classes: ProgramClasses) -> str:
        (report,) = classes.reports()
        return verdict(report)

    assert of(learned()) == "predicted at call 1"
    assert learned().states() == {"predicted": 1, "unpredicted": 0, "drifting": 0}
    assert learned(5).states() == {"predicted": 0, "unpredicted": 1, "drifting": 0}
    assert of(learned(5)) == f"unpredicted: 2 of {LEAST_SCORED} predictions scored"
    alike = ProgramClasses()
    for number in range(LEAST_PROGRAMS + LEAST_SCORED):
        work = 10.0 if number % 2 else 1000.0
        alike.on_program_ended(ProgramEnd(program_id="p", class_id="/chat", work=work))
    assert re.fullmatch(r"unpredicted: error 3\.\d\d, expected below 1\.94", of(alike))


def test_a_drift_is_stated() -> None:
    classes = learned(100)
    while not next(classes.reports()).is_drifting:
        begin(classes, "p")
        classes.on_program_ended(ProgramEnd(program_id="p", work=1e6))
    assert classes.states() == {"predicted": 0, "unpredicted": 0, "drifting": 1}
    assert verdict(next(classes.reports())) == (
        f"unpredicted: its sizes have changed, 0 of {LEAST_SCORED} predictions scored since"
    )


@pytest.mark.parametrize("has_socket", [True, False])
async def test_the_gateway_counts_uncached_prompts_and_twice_the_output(serve: Any, has_socket: bool) -> None:
    """The tokens come from the engine's reports, or from the answers of one that sends none."""
    async with serve(FakeBehaviour(output_tokens=5), has_socket=has_socket) as rig:
        for number in range(3):
            ids = {"X-Autellix-Program-ID": f"p{number}", "X-Autellix-Program-Name": "react"}
            usage = (await rig.chat(ids))["usage"]
            await rig.chat({**ids, "X-Autellix-Final": "true"})
        await rig.settled()
        (row,) = (await rig.get(CLASSES))[1]["classes"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    work = 2 * work_of(usage["prompt_tokens"] - cached, 5)
    assert (row["name"], row["tenant"], row["ended"]) == ("react", "", 3)
    assert row["median_work"] == row["p90_work"] == work
    assert [error["call"] for error in row["errors"]] == [1, 2, 4, 8, 16, 32]
    assert row["verdict"].startswith("unpredicted")


async def test_a_program_without_a_name_has_the_class_of_its_prompt(serve: Any) -> None:
    async with serve() as rig:
        await rig.chat({"X-Autellix-Program-ID": "p", "X-Autellix-Final": "true"})
        system = {"role": "system", "content": "be brief"}
        messages = [system, *HELLO["messages"]]
        await rig.chat({"X-Autellix-Program-ID": "q"}, messages=messages)
        assert list(rig.app.state.components.classes.reports())[-1].key.name == "unnamed"
        # The first call decides.
        await rig.chat({"X-Autellix-Program-ID": "q", "X-Autellix-Final": "true"})
        await rig.settled()
        rows = (await rig.get(CLASSES))[1]["classes"]
    assert [(row["name"].partition("-")[0], row["ended"]) for row in rows] == [("prompt", 1), ("unnamed", 1)]


async def test_a_tenant_sees_its_own_classes_only() -> None:
    keys = {
        bytes.fromhex(key_line(name).removeprefix(DIGEST_PREFIX)): Tenant(name=name, is_admin=name == "ops")
        for name in ("red", "blue", "ops")
    }
    engine = FakeEngine(FakeBehaviour())
    await engine.start()
    app = create_app(Settings(), engine, tenants=Tenants(keys))
    async with listening(app) as url, aiohttp.ClientSession() as client:

        async def shown(name: str) -> list[tuple[str, str]]:
            async with client.get(url + CLASSES, headers={"Authorization": f"Bearer {name}"}) as response:
                rows = (await response.json())["classes"]
                return [(row["tenant"], row["name"]) for row in rows]

        for name in ("red", "blue"):
            headers = {
                "Authorization": f"Bearer {name}",
                "X-Autellix-Program-ID": "p",
                "X-Autellix-Program-Name": "react",
            }
            async with client.post(url + CHAT, json=HELLO, headers=headers) as response:
                assert response.status == 200
        assert await shown("red") == [("red", "react")]
        assert await shown("blue") == [("blue", "react")]
        assert await shown("ops") == [("blue", "react"), ("red", "react")]
    await engine.stop()


async def test_classes_outlive_a_restart_in_a_shared_table(redis_server: RedisServer) -> None:
    engine = FakeEngine(FakeBehaviour())
    await engine.start()
    store = StoreSettings(url=redis_server.url, key_prefix="classes", timeout_ms=2000)
    settings = Settings(store=store)

    async def rows(url: str) -> list[dict[str, Any]]:
        async with client.get(url + CLASSES) as response:
            return list((await response.json())["classes"])

    async with aiohttp.ClientSession() as client:
        async with (
            listening(create_app(settings, engine)) as one,
            listening(create_app(settings, engine)) as two,
        ):
            for number in range(3):
                headers = {
                    "X-Autellix-Program-ID": f"p{number}",
                    "X-Autellix-Program-Name": "react",
                    "X-Autellix-Final": "true",
                }
                async with client.post(one + CHAT, json=HELLO, headers=headers) as response:
                    assert response.status == 200

            async def has_learned() -> bool:
                return [row["ended"] for row in await rows(two)] == [3]

            await until_async(has_learned)
            before = await rows(one)
        async with listening(create_app(settings, engine)) as again:
            assert await rows(again) == before
    await engine.stop()
