"""Engines of several models behind one gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.gateway.engines.pools import CHAT, PROGRAM, PoolRig, serving_pool
from tests.waiting import until

from autellix_backend.gateway.engines import models
from autellix_backend.gateway.engines.model_groups import groups_of

LARGE, SMALL = FakeBehaviour(models=("large",)), FakeBehaviour(models=("small",))


def test_engines_that_share_models_are_a_group() -> None:
    lists = {"a": ["m"], "b": ["n"], "c": ["m", "x"], "d": ["n", "y"], "e": []}
    assert groups_of(lists) == [{"a", "c", "e"}, {"b", "d"}]
    assert groups_of(lists | {"f": ["x", "y"]}) == [{"a", "b", "c", "d", "e", "f"}]
    assert groups_of({"a": (), "b": ()}) == [{"a", "b"}]
    assert groups_of({}) == []


async def test_each_call_goes_to_an_engine_of_its_model() -> None:
    async with serving_pool(LARGE, SMALL, LARGE) as rig:
        told = {
            (model, (await rig.chat(f"p{number % 3}", model=model))[1])
            for number in range(12)
            for model in ("large", "small")
        }
        assert {engine for model, engine in told if model == "small"} == {"fake-1"}
        assert {engine for model, engine in told if model == "large"} == {"fake-0", "fake-2"}
        assert [engine["models"] for engine in (await rig.ask("GET", ""))[1]["engines"]] == [
            ["large"],
            ["small"],
            ["large"],
        ]


async def test_a_program_stays_at_one_engine_of_each_model() -> None:
    async with serving_pool(LARGE, SMALL, LARGE, SMALL, balancer="locality") as rig:
        words = "word " * 400
        told = [(await rig.chat("p", words, model=model))[1] for model in ("large", "small") * 3]
        assert len(set(told)) == 2
        router = rig.app.state.gateway.router
        router.on_program_ended("p")
        assert [balancer._pins for balancer in router._balancers] == [{}, {}]


async def test_an_engine_without_a_list_may_serve_what_no_other_lists() -> None:
    async with serving_pool(LARGE, SMALL, FakeBehaviour(models=())) as rig:
        assert {(await rig.chat(model="other"))[1] for _ in range(4)} == {"fake-2"}
        assert {(await rig.chat(model="small"))[1] for _ in range(4)} == {"fake-1"}


async def test_a_long_name_is_cut_in_the_error() -> None:
    async with serving_pool(LARGE, SMALL) as rig:
        body = {"model": "x" * 10_000, "messages": []}
        async with rig.client.post(rig.url + CHAT, json=body) as response:
            assert response.status == 404
            assert len(await response.read()) < 500


async def test_a_call_without_a_model_is_for_the_first_engines() -> None:
    async with serving_pool(LARGE, SMALL) as rig:
        assert {(await rig.chat(model=None))[1] for _ in range(4)} == {"fake-0"}


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/tokenize", "/v1/models/unknown"])
async def test_an_unknown_model_is_refused_with_those_there_are(path: str) -> None:
    async with serving_pool(LARGE, SMALL) as rig:
        body = {"model": "unknown", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
        method = "GET" if path.startswith("/v1/models") else "POST"
        async with rig.client.request(method, rig.url + path, json=body) as response:
            error = (await response.json())["error"]
        assert response.status == 404
        assert error["message"] == "model: no engine serves 'unknown'; expected one of 'large', 'small'"
        assert error.get("code", "model_not_found") == "model_not_found"
        assert not any(engine.calls for engine in rig.engines)


@pytest.mark.parametrize(
    "body", [b"[" * 50_000, b'{"x":' * 50_000, b'{"model":1e999', b"\xff{", b'{"x":"\xff"}', b""]
)
async def test_a_body_without_a_model_to_read_is_for_the_engine_to_judge(body: bytes) -> None:
    """One is nested beyond the depth that Python allows."""
    async with serving_pool(LARGE, SMALL) as rig:
        async with rig.client.post(rig.url + "/tokenize", data=body) as response:
            assert response.status == 200
        told = (request for engine in rig.engines for request in engine.requests)
        assert [request.body for request in told if request.path == "/tokenize"] == [body]


async def test_engines_of_one_model_judge_its_names_themselves() -> None:
    """Some servers answer to any name."""
    async with serving_pool(LARGE, LARGE) as rig:
        assert (await rig.chat(model="any"))[0] == 200


async def test_all_models_are_listed_and_each_is_described_by_its_engine() -> None:
    async with serving_pool(LARGE, SMALL, FakeBehaviour(models=("small", "an-adapter"))) as rig:
        _, listed = await _read(rig, "/v1/models")
        assert [each["id"] for each in listed["data"]] == ["large", "small", "an-adapter"]
        assert listed["data"][0]["object"] == "model"
        assert (await _read(rig, "/v1/models/an-adapter"))[0] == 200
        assert rig.engines[2].requests[-1].path == "/v1/models/an-adapter"
        async with rig.client.post(rig.url + "/tokenize", json={"model": "small", "prompt": "x"}) as response:
            assert response.status == 200
        assert rig.engines[1].requests[-1].path == "/tokenize"


async def test_an_adapter_is_asked_for_where_it_is_loaded() -> None:
    behaviours = FakeBehaviour(models=("m",)), FakeBehaviour(models=("m", "adapter"))
    async with serving_pool(*behaviours) as rig:
        assert {(await rig.chat(model="adapter"))[1] for _ in range(4)} == {"fake-1"}
        assert {(await rig.chat(model="m"))[1] for _ in range(4)} == {"fake-0", "fake-1"}


async def test_a_name_that_no_engine_listed_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter was loaded since the lists were read; a flood of names reads them once."""
    async with serving_pool(LARGE, SMALL) as rig:
        assert (await rig.chat(model="adapter"))[0] == 404
        rig.engines[1].behaviour = FakeBehaviour(models=("small", "adapter"))
        assert (await rig.chat(model="adapter"))[0] == 404
        monkeypatch.setattr(models, "LEAST_AGE_S", 0.0)
        assert await rig.chat(model="adapter") == (200, "fake-1")


async def test_an_engine_of_another_model_joins_and_leaves_at_run_time() -> None:
    async with serving_pool(LARGE) as rig:
        other = FakeEngine(SMALL)
        await other.start()
        assert (await rig.ask("POST", "", url=other.base_url))[0] == 201
        assert await rig.chat(model="small") == (200, "remote-0")
        assert await rig.chat(model="large") == (200, "fake-0")
        assert (await rig.ask("DELETE", "/remote-0"))[0] == 202
        await until(lambda: len(rig.app.state.gateway.pool) == 1)
        assert (await rig.chat(model="large"))[0] == 200
        await other.stop()


async def test_a_drained_engine_keeps_the_calls_that_no_other_can_answer() -> None:
    async with serving_pool(LARGE, SMALL, max_in_flight=1, is_owned=False) as rig:
        gate = rig.close_gates()
        calls = [asyncio.create_task(rig.chat(model="small")) for _ in range(2)]
        await until(lambda: rig.app.state.gateway.pool.get("fake-1").open_calls == 2)
        assert (await rig.ask("POST", "/fake-1/drain"))[0] == 200
        gate.set()
        assert await asyncio.gather(*calls) == [(200, "fake-1")] * 2
        assert (await rig.chat(model="small"))[0] == 503


async def _read(rig: PoolRig, path: str) -> tuple[int, Any]:
    async with rig.client.get(rig.url + path, headers={PROGRAM: "p"}) as response:
        return response.status, await response.json()
