"""Whose fault a failed answer is, and the pause of an engine that fails calls by its own fault."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import openai
import pytest
from tests.fakes import engine as fakes
from tests.fakes.engine import FakeBehaviour
from tests.gateway.engines.pools import CHAT, PROGRAM, PoolRig, serving_pool
from tests.raw_engine import STREAM, chunk, raw_engine, whole
from tests.waiting import until

from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.engines import refusals
from autellix_backend.gateway.engines.refusals import (
    MAX_FAULTS,
    MAX_PAUSE_S,
    MAX_WORDS,
    PAUSE_S,
    Caller,
    Failure,
    Refusals,
    error_status,
    fault_of,
    retry_after_s,
    words_of,
)

LISTED = FakeBehaviour(models=("m",))
SEVERAL = 20


# -- The table.


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Failure(is_engines=False, can_repeat=False)),
        (401, Failure(is_engines=True, can_repeat=True, is_gateways_key=True)),
        (402, Failure(is_engines=True, can_repeat=True, is_gateways_key=True)),
        (403, Failure(is_engines=True, can_repeat=True)),
        (404, Failure(is_engines=True, can_repeat=True)),
        (407, Failure(is_engines=True, can_repeat=True, is_gateways_key=True)),
        (408, Failure(is_engines=False, can_repeat=False)),
        (413, Failure(is_engines=False, can_repeat=False)),
        (422, Failure(is_engines=False, can_repeat=False)),
        (429, Failure(is_engines=True, can_repeat=True)),
        (500, Failure(is_engines=True, can_repeat=False)),
        (501, Failure(is_engines=False, can_repeat=False)),
        (502, Failure(is_engines=True, can_repeat=False)),
        (503, Failure(is_engines=True, can_repeat=True)),
        (504, Failure(is_engines=True, can_repeat=False)),
        (505, Failure(is_engines=False, can_repeat=False)),
        (529, Failure(is_engines=True, can_repeat=False)),
    ],
)
def test_a_status_says_whose_fault_it_is(status: int, expected: Failure) -> None:
    assert fault_of(status, b"", lists_model=True, has_clients_key=False) == expected


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_clients_own_key_is_the_clients_until_another_engine_takes_it(status: int) -> None:
    fault = fault_of(status, b"", lists_model=True, has_clients_key=True)
    assert fault == Failure(is_engines=False, can_repeat=True)


def test_an_unknown_model_is_the_clients_fault() -> None:
    fault = fault_of(404, b"", lists_model=False, has_clients_key=False)
    assert fault == Failure(is_engines=False, can_repeat=False)


def test_a_proxys_503_after_a_broken_connection_may_have_run() -> None:
    words = b"upstream connect error or disconnect/reset before headers. reset reason: connection termination"
    assert fault_of(503, words, lists_model=True, has_clients_key=False) == Failure(
        is_engines=True, can_repeat=False
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"message": "slow down", "code": 429}}', 429),
        (b'{"error": {"message": "m", "code": "rate_limit"}}', 500),
        (b'{"error": {"message": "m", "code": 7}}', 500),
        (b'{"error": "overloaded"}', 500),
        (b'{"type": "error", "error": {"type": "overloaded_error", "message": "m"}}', 500),
        (b'{"id": "resp_1", "error": null, "output": []}', None),
        (b'{"id": "resp_1", "error": {"message": "m"}, "status": "failed"}', None),
        (b'{"id": "x", "choices": [{"message": {"content": "{\\"error\\": 1}"}}]}', None),
        (b'{"error": [1]}', None),
        (b'["error"]', None),
        (b"", None),
    ],
)
def test_a_body_with_an_error_object_is_no_answer(body: bytes, expected: int | None) -> None:
    assert error_status(body) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"error": {"message": "EngineDeadError:\\n  core"}}', "EngineDeadError: core"),
        (b'{"error": "overloaded"}', "overloaded"),
        (b'{"object": "error", "message": "old vLLM"}', "old vLLM"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>\n<b>502</b>", "<html> <b>502</b>"),
        (b"\xff\x00", "\N{REPLACEMENT CHARACTER}" * 2),
        (b"x" * 5000, "x" * (MAX_WORDS - 1) + "…"),
        (b"", ""),
    ],
)
def test_the_engines_words_are_one_bounded_line(content: bytes, expected: str) -> None:
    assert words_of(content) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("7", 7.0), ("0.5", 0.5), ("-1", None), ("inf", None), ("nan", None), ("Wed, 21 Oct", None), ("", None)],
)
def test_a_retry_after_in_seconds_is_read(value: str, expected: float | None) -> None:
    assert retry_after_s({"retry-after": value}) == expected


# -- The pause.


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def of(program: str = "p", tenant: str = "", model: str = "m") -> Caller:
    return Caller(program, tenant, model)


def known(clock: Clock) -> tuple[Refusals, list[bool]]:
    """Return the refusals of an engine that has answered a call, and the changes of its state."""
    changes = list[bool]()
    found = Refusals(clock, changes.append)
    found.on_answered(of())
    return found, changes


def test_an_engine_is_paused_after_several_programs_in_a_row() -> None:
    found, changes = known(Clock())
    for at in range(MAX_FAULTS - 1):
        found.on_fault(of(f"p{at}"), "500 m")
    found.on_answered(of())
    for at in range(MAX_FAULTS - 1):
        found.on_fault(of(f"p{at}"), "500 m")
    # One program's calls may be at fault.
    found.on_fault(of("p0"), "500 m")
    assert (found.is_paused, len(found), changes) == (False, MAX_FAULTS - 1, [])
    found.on_fault(of("p"), "500 m")
    assert (found.is_paused, found.is_refusing, changes) == (True, True, [True])
    assert found.problem is not None and found.problem.endswith("Z: 500 m")


def test_an_engine_that_has_answered_nothing_is_paused_at_once() -> None:
    found = Refusals(Clock(), lambda _: None)
    found.on_fault(of("p"), "500 m")
    assert found.is_paused


def test_a_pause_grows_with_each_failed_trial() -> None:
    clock = Clock()
    found, changes = known(clock)
    for at in range(MAX_FAULTS):
        found.on_fault(of(f"p{at}"), "500 m")
    pauses = []
    for _ in range(10):
        began_s = clock.now
        while found.is_paused:
            clock.now += 0.5
        pauses.append(clock.now - began_s)
        found.on_sent(of())
        # Other calls wait for the trial.
        assert found.is_paused
        found.on_fault(of("p"), "500 m")
    assert pauses[:4] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S
    found.on_answered(of())
    assert (found.is_paused, found.is_refusing, found.problem, changes) == (False, False, None, [True, False])


def test_calls_of_before_the_pause_do_not_lengthen_it() -> None:
    clock = Clock()
    found = Refusals(clock, lambda _: None)
    for at in range(SEVERAL):
        found.on_fault(of(f"p{at}"), "500 m")
    clock.now += PAUSE_S
    assert not found.is_paused


def test_an_engine_is_left_alone_as_long_as_it_asks_for() -> None:
    clock = Clock()
    found, _ = known(clock)
    found.on_fault(of("p"), "429 m", 7.0)
    clock.now += 6.9
    assert found.is_paused
    clock.now += 0.1
    assert not found.is_paused
    found.on_fault(of("p"), "429 m", 1e9)
    clock.now += refusals.MAX_STATED_PAUSE_S
    assert not found.is_paused


@pytest.mark.parametrize(
    ("faults", "paused", "free"),
    [
        (
            [of("a1", "a"), of("a2", "a"), of("a3", "a")],
            [of("a4", "a")],
            [of("b", "b"), of("a4", "a", "other")],
        ),
        (
            [of("a1", "a"), of("a2", "a", "other"), of("a3", "a")],
            [of("a4", "a"), of("a5", "a", "third")],
            [of("b", "b")],
        ),
        (
            [of("a1", "a"), of("b1", "b"), of("a2", "a")],
            [of("a3", "a"), of("c", "c")],
            [of("a3", "a", "other"), of("c", "c", "other")],
        ),
        ([of("a1", "a"), of("b1", "b", "other"), of("a2", "a")], [of("c", "c", "third")], []),
    ],
    ids=["one tenant's model", "one tenant", "one model", "all"],
)
def test_a_pause_is_for_those_whose_calls_fail(
    faults: list[Caller], paused: list[Caller], free: list[Caller]
) -> None:
    """Neither one tenant's calls nor one broken model keep an engine from the calls of others."""
    found, changes = known(Clock())
    for caller in faults:
        found.on_fault(caller, "404 m")
    assert [found.pauses(caller) for caller in paused + free] == [True] * len(paused) + [False] * len(free)
    assert changes == [True]


@pytest.mark.parametrize(("failing", "other"), [("m", None), (None, "m")])
def test_a_request_that_names_no_model_may_be_for_any(failing: str | None, other: str | None) -> None:
    found, _ = known(Clock())
    for at in range(MAX_FAULTS):
        found.on_fault(Caller(f"p{at}", "", failing), "500 m")
    assert found.pauses(Caller("q", "", other))


def test_an_answer_to_others_ends_no_pause() -> None:
    """A model that always fails must not get its calls back with each answer of another model."""
    clock = Clock()
    found, changes = known(clock)
    for at in range(MAX_FAULTS):
        found.on_fault(of(f"p{at}", model="broken"), "500 m")
        found.on_answered(of("q", model="whole"))
    assert found.pauses(of(model="broken"))
    clock.now += PAUSE_S
    found.on_sent(of("q", model="whole"))
    assert not found.is_paused
    found.on_sent(of(model="broken"))
    assert found.pauses(of("other", model="broken"))
    found.on_answered(of(model="broken"))
    assert (found.is_paused, changes) == (False, [True, False])


def test_faults_of_one_tenant_say_nothing_of_others_who_are_answered() -> None:
    found, _ = known(Clock())
    for at in range(MAX_FAULTS):
        found.on_fault(of(f"a{at}", "a"), "500 m")
    found.on_answered(of("b", "b"))
    found.on_fault(of("b", "b"), "500 m")
    assert [found.pauses(of("b", "b")), found.pauses(of("c", "c"))] == [False, False]


# -- Engines behind a gateway.


def refusing(status: int, message: str = "EngineDeadError") -> FakeBehaviour:
    return replace(LISTED, fault=fakes.Fault.ERROR, error_status=status, error_message=message)


async def run_programs(rig: PoolRig, programs: int = 20, calls: int = 5) -> Counter[int]:
    """Let programs make calls one after the other, all at once; return the statuses."""

    async def run(program: str) -> list[int]:
        return [(await rig.chat(program))[0] for _ in range(calls)]

    found = await asyncio.gather(*(run(f"p{at}") for at in range(programs)))
    return Counter(status for statuses in found for status in statuses)


async def metric(rig: PoolRig, name: str) -> float:
    _, text = await rig.text("/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize("balancer", ["working_set", "round_robin", "least_used"])
@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
async def test_calls_that_an_engine_refuses_are_answered_by_another(status: int, balancer: str) -> None:
    slow = replace(LISTED, token_delay_s=0.01)
    async with serving_pool(refusing(status), slow, balancer=balancer) as rig:
        await until(lambda: all(member.models for member in rig.app.state.gateway.pool))
        assert await run_programs(rig) == {200: 100}
        # Only the first calls, and the trials.
        assert len(rig.engines[0].calls) <= SEVERAL
        engines = (await rig.ask("GET", ""))[1]["engines"]
        assert [engine["state"] for engine in engines] == ["refusing", "up"]
        assert engines[0]["failure"].endswith(f"Z: {status} EngineDeadError")
        assert await metric(rig, 'autellix_engine_refusing{engine="fake-0"}') == 1
        assert await metric(rig, "autellix_redispatches_total") == len(rig.engines[0].calls)


@pytest.mark.parametrize("others", [1, 2])
async def test_an_engine_that_fails_at_once_does_not_draw_the_calls(others: int) -> None:
    """Its 500s may have run, so their clients get them; the engine looks free, and is not."""
    slow = replace(LISTED, token_delay_s=0.01)
    async with serving_pool(refusing(500), *[slow] * others, balancer="working_set") as rig:
        statuses = await run_programs(rig)
        assert statuses[200] + statuses[500] == 100
        assert 1 <= statuses[500] == len(rig.engines[0].calls) <= 10
        assert await metric(rig, "autellix_redispatches_total") == 0


async def test_the_official_client_meets_no_failing_engine_twice() -> None:
    slow = replace(LISTED, token_delay_s=0.01)
    async with (
        serving_pool(refusing(500), slow, balancer="round_robin") as rig,
        openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="k", max_retries=2) as client,
    ):

        async def run(program: str) -> None:
            for _ in range(5):
                await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "hello"}],
                    extra_headers={PROGRAM: program},
                )

        await asyncio.gather(*(run(f"p{at}") for at in range(20)))
        assert len(rig.engines[0].calls) <= SEVERAL


async def test_the_last_engine_is_never_paused() -> None:
    async with serving_pool(refusing(503), refusing(429)) as rig:
        statuses = await run_programs(rig, programs=5, calls=2)
        assert sum(statuses.values()) == 10 and statuses.keys() <= {429, 503}
        for engine in rig.engines:
            engine.behaviour = LISTED
        assert (await rig.chat("late"))[0] == 200
        assert "up" in [engine["state"] for engine in (await rig.ask("GET", ""))[1]["engines"]]


async def test_an_engine_that_answers_again_gets_calls_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(refusals, "PAUSE_S", 0.05)
    async with serving_pool(refusing(503), LISTED) as rig:
        handle = rig.app.state.gateway.pool.get("fake-0")
        assert (await rig.chat("p"))[1] == "fake-1"
        assert handle.refusals.is_refusing
        rig.engines[0].behaviour = LISTED
        await until(lambda: not handle.refusals.is_paused)
        assert {(await rig.chat(f"p{at}"))[1] for at in range(4)} == {"fake-0", "fake-1"}
        assert handle.state == "up"
        assert "fake-0 is refusing since" in caplog.text and "Z: 503 EngineDeadError" in caplog.text
        assert "fake-0 refuses no calls any more" in caplog.text


async def test_a_program_leaves_an_engine_that_fails_it() -> None:
    async with serving_pool(LISTED, LISTED, balancer="working_set") as rig:
        assert (await rig.chat("p"))[1] == "fake-0"
        rig.engines[0].behaviour = refusing(500)
        assert (await rig.chat("p"))[0] == 500
        assert not rig.app.state.gateway.pool.get("fake-0").refusals.is_paused
        assert (await rig.chat("p"))[1] == "fake-1"


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_clients_fault_marks_no_engine(status: int) -> None:
    async with serving_pool(refusing(status), LISTED) as rig:
        statuses = await run_programs(rig, programs=10, calls=2)
        assert statuses == {status: 10, 200: 10}
        assert await metric(rig, "autellix_engine_refusing") == 0
        assert len(rig.engines[0].calls) == 10


async def test_a_key_of_the_client_is_tried_at_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """If that takes it, the first engine is at fault; if not, the client is."""
    monkeypatch.setattr(refusals, "PAUSE_S", 0.05)
    async with serving_pool(refusing(401), LISTED) as rig:
        headers = {PROGRAM: "p", "authorization": "Bearer mine"}
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}

        async def status() -> int:
            async with rig.client.post(rig.url + CHAT, json=body, headers=headers) as response:
                return response.status

        assert await status() == 200
        handles = list(rig.app.state.gateway.pool)
        assert [handle.refusals.is_refusing for handle in handles] == [True, False]
        await until(lambda: not handles[0].refusals.is_paused)
        handles[0].refusals.on_answered(Caller("p", "", "m"))
        rig.engines[1].behaviour = refusing(401)
        assert await status() == 401
        assert [handle.refusals.is_refusing for handle in handles] == [False, False]


async def test_a_key_that_is_valid_at_one_engine_reaches_it_even_while_it_is_paused() -> None:
    """Others, whose keys it does not take, may have had it paused."""
    async with serving_pool(LISTED, refusing(401)) as rig:
        first, second = rig.app.state.gateway.pool
        await until(lambda: first.models and second.models)
        for at in range(MAX_FAULTS):
            first.refusals.on_fault(Caller(f"other{at}", "", "m"), "401 m")
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        headers = {"authorization": "Bearer mine"}
        async with rig.client.post(rig.url + CHAT, json=body, headers=headers) as response:
            assert (response.status, response.headers["X-Autellix-Engine"]) == (200, "fake-0")


PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "hello"}]}),
    "stream": (CHAT, {"messages": [{"role": "user", "content": "hello"}], "stream": True}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}),
    "pass-through": ("/tokenize", {"prompt": "hello"}),
    "count_tokens": ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hello"}]}),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("status", [401, 402, 407])
async def test_a_refusal_of_the_gateways_key_is_not_the_clients(
    path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's key is none of the engine's: the engine's words are for the operator."""
    async with serving_pool(refusing(status, "incorrect key: sk-…xyz"), api_key="old") as rig:
        target, body = PATHS[path]
        async with rig.client.post(rig.url + target, json={"model": "m", **body}) as response:
            answer = await response.json()
        assert (response.status, response.headers["x-should-retry"]) == (502, "false")
        assert "www-authenticate" not in response.headers
        assert answer["error"]["message"] == (
            f"engine fake-0 does not take the gateway's key (status {status}); "
            "only the gateway's operator can mend it"
        )
        if target.startswith("/v1/messages"):
            assert (answer["type"], answer["error"]["type"]) == ("error", "api_error")
        else:
            assert answer["error"]["code"] == "engine_key_refused"
        assert f"Z: {status} incorrect key: sk-…xyz" in caplog.text
        if target in (CHAT, "/v1/messages"):
            await until(lambda: f"status={status} outcome=engine_error" in caplog.text)


async def test_an_error_event_about_the_gateways_key_is_not_the_clients() -> None:
    event = json.dumps({"error": {"message": "incorrect key", "code": 401}}).encode()
    async with raw_engine() as raw, serving_pool(LISTED, api_key="old") as rig:
        raw.parts = [STREAM, chunk(b"data: " + event + b"\n\n"), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
        parts = rig.app.state.gateway
        remote = RemoteEngine(raw.url, name="raw")
        await remote.start()
        parts.pool.join(remote)
        parts.pool.drain("fake-0")
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with rig.client.post(rig.url + CHAT, json=body) as response:
            assert response.status == 502
            assert (await response.json())["error"]["code"] == "engine_key_refused"


@pytest.mark.parametrize("path", ["pass-through", "count_tokens"])
@pytest.mark.parametrize("status", [401, 429, 503])
async def test_a_pass_through_that_an_engine_refuses_is_answered_by_another(path: str, status: int) -> None:
    async with serving_pool(refusing(status), LISTED) as rig:
        target, body = PATHS[path]
        async with rig.client.post(rig.url + target, json={"model": "m", **body}) as response:
            assert response.status == 200
        first, second = rig.app.state.gateway.pool
        # It has not answered anything yet.
        assert (first.refusals.is_refusing, second.refusals.is_refusing) == (True, False)


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_pass_through_that_fails_stays_where_it_may_have_run(status: int) -> None:
    async with serving_pool(refusing(status), LISTED) as rig:
        first, second = rig.app.state.gateway.pool
        first.refusals.on_answered(Caller("p", "", "m"))
        for _ in range(2 * MAX_FAULTS):
            async with rig.client.post(rig.url + "/tokenize", json={"prompt": "hello"}) as response:
                assert response.status == status
        # However many: those of one tenant count as one program.
        assert (first.refusals.is_refusing, len(first.refusals)) == (False, int(status == 500))
        assert len(second.refusals) == 0


async def test_a_pass_through_finds_the_engine_that_is_there() -> None:
    async with serving_pool(LISTED, LISTED, is_owned=False) as rig:
        await rig.engines[0].stop()
        async with rig.client.post(rig.url + "/tokenize", json={"prompt": "hello"}) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("answer", "status", "outcome"),
    [
        (whole(b'{"error": {"message": "overloaded", "code": 503}}'), 200, "ok"),
        (whole(b'{"error": {"message": "broken"}}'), 500, "engine_error"),
        (whole(b'{"error": {"message": "too long", "code": 400}}'), 400, "rejected"),
        (whole(b"<html>", b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n"), 502, "bad_answer"),
    ],
)
async def test_an_error_that_comes_with_status_200_is_one(answer: bytes, status: int, outcome: str) -> None:
    async with raw_engine() as raw, serving_pool(LISTED, LISTED) as rig:
        raw.parts = [answer]
        settled = list[Any]()
        parts = rig.app.state.gateway
        parts.registry.subscribe(on_settled=settled.append)
        remote = RemoteEngine(raw.url, name="raw")
        await remote.start()
        parts.pool.join(remote)
        for handle in parts.pool:
            handle.models = {"m": {}}
        parts.pool.regroup()
        for engine in rig.engines[1:]:
            parts.pool.drain(engine.name)
        statuses = [(await rig.chat("p"))[0] for _ in range(3)]
        assert raw.requests >= 1
        assert status in statuses and set(statuses) <= {200, status}
        assert outcome in [call.outcome for call in settled]
        assert parts.pool.get("raw").refusals.is_refusing == (outcome != "rejected")


@pytest.mark.parametrize("code", [429, 500])
async def test_an_error_event_before_the_first_token_is_the_engines(code: int) -> None:
    event = json.dumps({"error": {"message": "boom", "code": code}}).encode()
    async with raw_engine() as raw, serving_pool(LISTED) as rig:
        raw.parts = [STREAM, chunk(b"data: " + event + b"\n\n"), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
        parts = rig.app.state.gateway
        remote = RemoteEngine(raw.url, name="raw")
        await remote.start()
        parts.pool.join(remote)
        for handle in parts.pool:
            handle.models = {"m": {}}
        parts.pool.regroup()
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        contents = []
        for _ in range(2):
            async with rig.client.post(rig.url + CHAT, json=body) as response:
                contents.append(await response.read())
        assert raw.requests == 1
        assert [b"boom" in content for content in sorted(contents)].count(True) == (code == 500)
        assert parts.pool.get("raw").refusals.is_refusing
