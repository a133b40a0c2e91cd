"""The gateway in front of real vLLM with the scheduler class."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import pytest
from tests.gateway.agents import AGENTS, Task
from tests.gateway.calls.agent_clients import OpenCode
from tests.gateway.live_states import watch
from tests.waiting import until

from autellix_backend.assembly import create_app
from autellix_backend.cli.main import main
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.settings import GatewaySettings, Settings
from autellix_backend.stores.base import CallEnd, CallStart
from autellix_backend.stores.memory import MemoryStore

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

CHAT = "/v1/chat/completions"
LONG_TOKENS = 6000
"""So many that a call is still open when the gateway has been seen to know of it."""


@asynccontextmanager
async def gateway(engine: Any, listen: Any) -> AsyncIterator[tuple[str, MemoryStore, aiohttp.ClientSession]]:
    settings = Settings(gateway=GatewaySettings(report_wait_s=5.0), scheduler=SchedulerConfig(policy="plas"))
    store = MemoryStore(make_policy("plas"), program_idle_s=60.0, session_ttl_s=60.0)
    async with listen(create_app(settings, engine, store=store)) as url, aiohttp.ClientSession() as client:
        yield url, store, client
    store.check()
    assert (await store.counts()).active_calls == 0


async def body_of(client: aiohttp.ClientSession, url: str, **fields: Any) -> dict[str, Any]:
    async with client.get(url + "/v1/models") as response:
        model = (await response.json())["data"][0]["id"]
    messages = [{"role": "user", "content": "Tell me about queues."}]
    return {"model": model, "messages": messages, "ignore_eos": True, "max_tokens": 16, **fields}


async def test_answers_and_streams_carry_the_engines_own_numbers(live_engine: Any, listen: Any) -> None:
    async with gateway(live_engine, listen) as (url, store, client):
        body = await body_of(client, url)
        headers = {"X-Autellix-Program-ID": "p"}
        async with client.post(url + CHAT, json=body, headers=headers) as response:
            receipts = [(await response.json())["autellix"]]
        async with client.post(url + CHAT, json={**body, "stream": True}, headers=headers) as response:
            lines = (await response.read()).split(b"\n\n")
        receipts.append(json.loads(lines[-3].removeprefix(b": autellix ")))
        for receipt in receipts:
            assert receipt["estimated"] is False
            assert receipt["output_tokens"] == 16
            assert receipt["engine_steps"] >= 16
            assert receipt["service_s"] > 0
        program = await store.program("p")
        assert program is not None
        assert program.service_s == pytest.approx(sum(receipt["service_s"] for receipt in receipts), abs=2e-6)
        assert program.calls[1].end is not None
        assert program.calls[1].end.inherited_service_s == pytest.approx(receipts[0]["service_s"], abs=2e-6)


async def test_all_choices_are_settled(live_engine: Any, listen: Any) -> None:
    async with gateway(live_engine, listen) as (url, _store, client):
        body = await body_of(client, url, n=3, temperature=1.0)
        async with client.post(url + CHAT, json=body) as response:
            receipt = (await response.json())["autellix"]
        assert (receipt["estimated"], receipt["output_tokens"]) == (False, 48)


async def test_a_beam_search_is_one_call_of_its_program(live_engine: Any, listen: Any) -> None:
    """Its engine makes requests of it, for each beam and token, that lack its arguments."""
    async with gateway(live_engine, listen) as (url, store, client):
        body = await body_of(client, url, use_beam_search=True, n=2, max_tokens=4)
        headers = {"X-Autellix-Program-ID": "p"}
        async with client.post(url + CHAT, json=body, headers=headers) as response:
            answer = await response.json()
        assert len(answer["choices"]) == 2
        receipt = answer["autellix"]
        # One request for the first token, and one for each beam and further token: all seven have reported.
        assert receipt["estimated"] is False
        program = await store.program("p")
        assert program is not None
        assert (program.finished_calls, (await store.counts()).programs) == (1, 1)
        assert program.service_s > 0


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_client_that_leaves_aborts_the_call(
    live_engine: Any, listen: Any, is_streaming: bool
) -> None:
    async with gateway(live_engine, listen) as (url, store, client):
        body = await body_of(client, url, max_tokens=LONG_TOKENS, stream=is_streaming)

        async def keep_calling() -> None:
            headers = {"X-Autellix-Program-ID": "p"}
            while True:
                async with client.post(url + CHAT, json=body, headers=headers) as response:
                    await response.read()

        async def is_running() -> bool:
            async with client.get(f"{url}/autellix/v1/programs/p/why") as response:
                calls = (await response.json())["calls"] if response.status == 200 else []
                return [(call["state"], call["position"]) for call in calls] == [("in_engine", 1)]

        task = asyncio.create_task(keep_calling())
        await until(is_running)
        task.cancel()
        await until(partial(is_settled, store))
        program = await store.program("p")
        assert program is not None
        end = program.calls[-1].end
        assert end is not None
        # The engine's own account of the abort arrived, and it stopped before the end.
        assert (end.outcome, end.is_estimated) == ("aborted", False)
        assert end.output_tokens is not None and end.output_tokens < LONG_TOKENS


async def test_a_waiting_calls_why_names_its_level_and_who_is_ahead(live_engine: Any, listen: Any) -> None:
    """A program that has used much waits behind four that have used nothing, in all of the engine's slots."""

    async with gateway(live_engine, listen) as (url, store, client):
        await store.begin(CallStart(key="past", call_id="past", program_id="slow"), 0.0)
        past = CallEnd(
            key="past",
            program_id="slow",
            outcome="ok",
            services_s=(100.0,),
            wait_s=0.0,
            table_wait_s=0.0,
            inherited_service_s=0.0,
            is_estimated=False,
        )
        await store.settle(past, 0.0)
        body = await body_of(client, url, max_tokens=LONG_TOKENS)

        async def keep_calling(program_id: str) -> None:
            headers = {"X-Autellix-Program-ID": program_id}
            while True:
                async with client.post(url + CHAT, json=body, headers=headers) as response:
                    await response.read()

        async def why(program_id: str) -> Any:
            async with client.get(f"{url}/autellix/v1/programs/{program_id}/why") as response:
                return await response.json()

        names = [f"fast-{number}" for number in range(4)]
        tasks = [asyncio.create_task(keep_calling(name)) for name in (*names, "slow")]

        async def is_as_said() -> bool:
            """Whether a snapshot with all five has been told of; the calls come and go."""
            told.update({name: await why(name) for name in ("slow", "fast-0")})
            places = [
                (call["state"], call["position"], call["short_of"])
                for each in told.values()
                for call in each.get("calls", ())
            ]
            return places[:1] == [("waiting_for_slot", 5, "slots")] and [
                place[0] for place in places[1:]
            ] == ["in_engine"]

        told: dict[str, Any] = {}
        await until(is_as_said)
        (waiting,) = told["slow"]["calls"]
        assert {ahead["program_id"] for ahead in waiting["programs_ahead"]} == set(names)
        assert (waiting["level"], waiting["level_min_s"], waiting["level_max_s"]) == (10, 64.0, 128.0)
        assert waiting["inherited_service_s"] == 100.0
        # It may wait 8 times as long as it was served.
        assert 700.0 < waiting["promoted_in_s"] <= 800.0
        assert "Ahead of it: fast-" in waiting["text"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(partial(is_settled, store))


async def is_settled(store: MemoryStore) -> bool:
    return (await store.counts()).active_calls == 0


FORCED: dict[str, Any] = {
    "mini-swe-agent": {"type": "function", "function": {"name": "read"}},
    "Vercel AI SDK, chat": {"type": "function", "function": {"name": "read"}},
    "Anthropic's SDK": {"type": "tool", "name": "read"},
    "Vercel AI SDK, messages": {"type": "tool", "name": "read"},
    "OpenAI Agents, responses": {"type": "function", "name": "read"},
    "LangGraph.js, responses": {"type": "function", "name": "read"},
}
"""How each client's dialect has the model call a tool, whatever it would say."""


@pytest.mark.parametrize("name", FORCED)
async def test_a_task_with_tools_is_one_program_by_vllms_own_ids(
    live_engine: Any, listen: Any, name: str
) -> None:
    async with gateway(live_engine, listen) as (url, _store, client):
        options = await body_of(client, url)
        task = Task(AGENTS[name])
        programs = []
        for _ in range(2):
            limit = "max_output_tokens" if "input" in task.body else "max_tokens"
            body = {**task.body, "model": options["model"], "tool_choice": FORCED[name], limit: 64}
            async with client.post(url + task.agent.path, json=body) as response:
                answer = await response.read()
                assert response.status == 200, answer
                programs.append(response.headers["X-Autellix-Program-ID"])
            task.take(answer)
        assert programs[0] == programs[1]


async def test_programs_that_wait_for_a_slot_are_those_that_the_engine_keeps_waiting(
    live_engine: Any, listen: Any
) -> None:
    async with gateway(live_engine, listen) as (url, _store, client):
        body = await body_of(client, url, max_tokens=1500)
        watched = await watch(url, live_engine.base_url, client, {f"p-{each}": body for each in range(12)})

    watched.check()
    assert (watched.states["waiting_for_memory"], watched.states["waiting_for_slot"] > 0) == (0, True)
    assert max(seen.waiting for seen in watched.gateway) >= 8


async def test_why_names_where_a_call_left_its_prefix(
    live_engine: Any, listen: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the engine's own count of what it found; calls that go on from the one before are silent."""
    client = OpenCode(1)
    client.prompt, client.rules = client.prompt[:2000], client.rules[:400]
    client.descriptions = {name: text[:60] for name, text in client.descriptions.items()}
    client.schemas = {name: {"type": "object"} for name in client.descriptions}
    calls: list[str] = []
    async with gateway(live_engine, listen) as (url, _store, session):
        model = (await body_of(session, url))["model"]

        async def call() -> None:
            headers = {"X-Autellix-Program-ID": "prefix", "X-Autellix-Call-ID": f"prefix-{len(calls)}"}
            body = {**client.body(), "model": model, "stream": False, "max_tokens": 1}
            async with session.post(url + CHAT, json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
            calls.append(headers["X-Autellix-Call-ID"])
            number = f"note {len(calls)}. " * 20
            client.turns += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": number}]

        async def why(call_id: str) -> tuple[str, Any]:
            assert await asyncio.to_thread(main, ["why", call_id, "--url", url]) == 0
            async with session.get(f"{url}/autellix/v1/calls/{call_id}/why") as response:
                return " ".join(capsys.readouterr().out.split()), (await response.json())["prefix_break"]

        for _ in range(3):
            await call()
        client.day = "Thu Jun 18 2026"
        await call()
        await call()
        for call_id in (*calls[:3], calls[4]):
            text, found = await why(call_id)
            assert found is None, text
            assert "prompt tokens were in the prefix cache." in text
        text, found = await why(calls[3])
    assert (found["kind"], found["path"]) == ("timestamp", "messages[1].content line 4")
    # The engine found the first system message, in whole blocks, and nothing behind the day.
    assert 0 < found["found_tokens"] < found["expected_tokens"] - 512 < found["prompt_tokens"]
    names = ("expected_tokens", "prompt_tokens", "found_tokens")
    expected, prompt, count = (f"{found[name]:,}" for name in names)
    head = (
        f"{expected} of its {prompt} prompt tokens should have been found in the prefix cache, {count} were: "
    )
    cause = "only a time, a date or a number differs from the call before, at messages[1].content line 4."
    assert head + cause in text
