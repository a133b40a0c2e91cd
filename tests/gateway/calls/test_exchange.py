"""Calls through the gateway: what reaches the engine, what comes back, and how calls end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from tests.fakes.engine import FakeBehaviour, Fault
from tests.raw_engine import RawEngine, raw_engine, whole
from tests.stores.tables import all_programs
from tests.waiting import until

from autellix_backend.core.statistics import PRIOR_SPREAD
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.calls.exchange import pause_after
from autellix_backend.gateway.engines.upstream import AT_ONCE_S, EngineResetError, Upstream
from autellix_backend.gateway.errors import EngineAnswerError, EngineUnavailableError
from autellix_backend.gateway.tenancy.intake import LONG_BODY_BYTES
from autellix_backend.identity.classes import LEAST_PROGRAMS
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.settings import Settings

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def test_untouched_fields_reach_the_engine_byte_by_byte(serve: Any) -> None:
    async with serve() as rig:
        messages = b'[ {"role":"user",  "content":"\\u00e9 1e5 \xc3\xa9"} ]'
        body = b'{"messages":' + messages + b',"future":{"x": 1.50},"priority":-9,"tools":[ ],'
        body += b'"vllm_xargs":{"kept":"yes","autellix_service_s":-1}}'
        async with rig.client.post(rig.url + CHAT, data=body) as response:
            assert response.status == 200
        sent = rig.engine.calls[0]
        assert messages in sent.body
        assert b'"future":{"x": 1.50}' in sent.body
        assert b'"tools":[ ]' in sent.body
        assert "priority" not in sent.json
        assert sent.xargs["kept"] == "yes"
        assert sent.xargs["autellix_service_s"] == 0.0


async def test_the_synchronous_client_gets_answers_and_streams(serve: Any) -> None:
    def use(url: str) -> tuple[openai.types.chat.ChatCompletion, list[openai.types.chat.ChatCompletionChunk]]:
        with openai.OpenAI(base_url=url + "/v1", api_key="k") as client:
            answer = client.chat.completions.create(**HELLO)
            stream = client.chat.completions.create(
                **HELLO, stream=True, stream_options={"include_usage": True}
            )
            return answer, list(stream)

    async with serve() as rig:
        answer, chunks = await asyncio.to_thread(use, rig.url)
        assert answer.choices[0].message.content == "token0 token1 token2 token3 "
        assert answer.model_extra is not None
        assert answer.model_extra["autellix"]["output_tokens"] == 4
        assert answer.usage is not None and answer.usage.completion_tokens == 4
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == (
            "token0 token1 token2 token3 "
        )
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 4


async def test_the_asynchronous_client_sees_tool_calls_and_errors_of_streams(serve: Any) -> None:
    async with (
        serve(FakeBehaviour(message_fields={"tool_calls": [TOOL_CALL]})) as rig,
        openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="k") as client,
    ):
        calls = (await client.chat.completions.create(**HELLO)).choices[0].message.tool_calls
        assert calls is not None and calls[0].id == "call_1"
        assert (await client.models.list()).data[0].id == "autellix.fake-model"
        rig.engine.behaviour = FakeBehaviour(fault=Fault.RESET_MID_STREAM)
        stream = await client.chat.completions.create(**HELLO, stream=True)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


async def test_service_accumulates_and_is_sent_to_the_engine(serve: Any) -> None:
    async with serve() as rig:
        for _ in range(3):
            await rig.chat({"X-Autellix-Program-ID": "p", "X-Autellix-Thread-ID": "7"})
        told = [call.xargs["autellix_service_s"] for call in rig.engine.calls]
        assert told == pytest.approx([0.0, 0.04, 0.08])
        assert rig.engine.calls[2].xargs["autellix_program"] == "p"
        assert rig.engine.calls[2].xargs["autellix_thread"] == "7"
        assert len({call.xargs["autellix_call"] for call in rig.engine.calls}) == 3


async def test_unidentified_calls_leave_nothing_behind(serve: Any) -> None:
    async with serve() as rig:
        await rig.chat()
        assert await all_programs(rig.store) == []


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_client_that_leaves_aborts_the_call_in_the_engine(
    serve: Any, wait_until: Any, is_streaming: bool
) -> None:
    async with serve(FakeBehaviour(output_tokens=1000, token_delay_s=0.01)) as rig:
        call = asyncio.create_task(rig.chat({"X-Autellix-Program-ID": "p"}, stream=is_streaming))
        await wait_until(lambda: rig.engine.steps >= 1)
        call.cancel()
        await wait_until(lambda: rig.engine.aborted_calls == 1)
        await rig.settled()
        program = await rig.store.program("p")
        assert program is not None
        assert [view.end.outcome for view in program.calls] == ["aborted"]
        assert 0 < program.service_s < 5


async def test_an_upstream_error_passes_through_with_its_status(serve: Any) -> None:
    async with serve(FakeBehaviour(fault=Fault.ERROR, error_status=418)) as rig:
        async with rig.client.post(rig.url + CHAT, json=HELLO) as response:
            assert response.status == 418
            answer = await response.json()
        assert answer["error"]["message"] == "the fake engine was told to fail"
        assert "autellix" not in answer


async def test_a_call_that_a_kept_connection_lost_unread_is_sent_once_more(serve: Any) -> None:
    """The engine had closed the connection, perhaps for being idle."""
    async with serve() as rig:
        await rig.chat()
        rig.engine.behaviour = FakeBehaviour(fault=Fault.RESET_BEFORE_FIRST_BYTE, faulty_calls=1)
        assert (await rig.chat())["autellix"]["output_tokens"] == 4
        assert len({call.xargs["autellix_call"] for call in rig.engine.calls}) == 3


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE_FIRST_BYTE, Fault.RESET_MID_STREAM])
async def test_no_call_runs_twice(serve: Any, fault: Fault) -> None:
    """An engine that read it and closes the connection may have run it: no client library repeats it."""
    async with serve(FakeBehaviour(fault=fault)) as rig:
        with pytest.raises(openai.APIStatusError) as caught:
            async with openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="k", max_retries=2) as client:
                await client.chat.completions.create(**HELLO)
        response = caught.value.response
        assert (response.status_code, response.headers["x-should-retry"]) == (502, "false")
        assert "X-Autellix-Program-ID" in response.headers
        error = response.json()["error"]
        assert (error["code"], "may have run" in error["message"]) == ("bad_engine_answer", True)
        assert len(rig.engine.calls) == 1


@contextlib.asynccontextmanager
async def upstream_of(raw: RawEngine) -> AsyncIterator[Upstream]:
    """Yield the requests to an engine."""
    engine = RemoteEngine(raw.url)
    await engine.start()
    upstream = Upstream(engine, Settings(), GatewayMetrics())
    upstream.open()
    try:
        yield upstream
    finally:
        await upstream.close()
        await engine.stop()


async def test_other_requests_are_repeated_only_where_that_changes_nothing() -> None:
    async with raw_engine() as engine, upstream_of(engine) as upstream:
        seen = engine.requests
        with pytest.raises(EngineAnswerError, match="may have run"):
            await upstream.forward("POST", "/v1/files", {}, b"{}")
        assert engine.requests == seen + 1


@pytest.mark.parametrize(
    ("resets", "after_s", "was_lost"), [(True, 0.0, True), (True, AT_ONCE_S, False), (False, 0.0, False)]
)
async def test_only_a_kept_connection_that_is_reset_at_once_has_lost_a_request(
    resets: bool, after_s: float, was_lost: bool
) -> None:
    """After a while, or where the connection ends as usual, the engine may have read it."""
    async with raw_engine() as engine, upstream_of(engine) as upstream:
        engine.stays, engine.parts, engine.resets = True, [whole(b"{}")], resets
        for _ in range(2):
            response = await upstream.send("POST", CHAT, {}, b"{}")
            assert await upstream.read(response) == b"{}"
        engine.parts, seen = [], engine.requests
        engine.may_answer.clear()
        call = asyncio.create_task(upstream.send("POST", CHAT, {}, b"{}"))
        await until(lambda: engine.requests == seen + 1)
        engine.stays = False
        await asyncio.sleep(after_s)
        engine.may_answer.set()
        with pytest.raises(EngineUnavailableError) as caught:
            await call
        assert isinstance(caught.value, EngineResetError) == was_lost
        assert engine.requests == seen + 1


async def test_a_dead_engine_is_named_with_its_reason(serve: Any) -> None:
    async with serve(engine_settings={"max_restarts": 0}) as rig:
        assert await rig.get("/readyz") == (200, {"status": "ready"})
        await rig.engine.kill("exit status 139")
        status, answer = await rig.get("/readyz")
        assert status == 503
        assert "exit status 139" in answer["error"]["message"]
        assert "exit status 139" in (await rig.chat())["error"]["message"]
        assert (await rig.get("/v1/models"))[0] == 503
        assert (await rig.get("/healthz"))[0] == 200


async def test_a_silent_engine_times_out(serve: Any, wait_until: Any) -> None:
    async with serve(FakeBehaviour(fault=Fault.HANG), upstream_timeout_s=0.2) as rig:
        async with rig.client.post(rig.url + CHAT, json=HELLO) as response:
            assert response.status == 504
            assert response.headers["x-should-retry"] == "false"
            assert (await response.json())["error"]["code"] == "engine_timeout"
        await wait_until(lambda: rig.engine.aborted_calls == 1)


@pytest.mark.parametrize(
    ("headers", "body", "param"),
    [
        ({}, b"", None),
        ({}, b"{", None),
        ({}, b"[1]", None),
        ({}, b'{"a":' + b"[" * 100_000, None),
        ({}, b'{"vllm_xargs":[]}', "vllm_xargs"),
        ({"X-Autellix-Program-ID": "x" * 257}, b"{}", "X-Autellix-Program-ID"),
        ({"X-Autellix-Parent-IDs": "a,,b"}, b"{}", "X-Autellix-Parent-IDs"),
        ({"X-Autellix-Final": "maybe"}, b"{}", "X-Autellix-Final"),
    ],
)
async def test_malformed_requests_get_a_400_that_names_the_fault(
    serve: Any, headers: dict[str, str], body: bytes, param: str | None
) -> None:
    async with serve() as rig:
        async with rig.client.post(rig.url + CHAT, data=body, headers=headers) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert rig.engine.calls == []


async def test_other_errors_have_the_same_shape(serve: Any) -> None:
    async with serve(max_body_bytes=100) as rig:
        async with rig.client.post(rig.url + CHAT, data=b"x" * 101) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "body_too_large"
        async with rig.client.get(rig.url + CHAT) as response:
            assert response.status == 405
            assert response.headers["Allow"] == "POST"
            assert (await response.json())["error"]["code"] == "method_not_allowed"
        status, answer = await rig.get("/nowhere")
        assert (status, answer["error"]["code"]) == (404, "not_found")


async def test_choices_are_settled_together(serve: Any) -> None:
    async with serve(report_wait_s=2.0) as rig:
        # The fake engine accounts for one of the two, so the sum is known to be incomplete.
        receipt = (await rig.chat(n=2))["autellix"]
        assert receipt["estimated"] is True
        assert receipt["output_tokens"] == 4


async def test_the_engine_gets_what_boost_and_admission_read_of_a_program(serve: Any) -> None:
    """Age, work and class with each call, and once the ends of programs that it knows."""
    async with serve(policy="boost", admission="working_set", reports=False) as rig:
        headers = {"X-Autellix-Program-ID": "p", "X-Autellix-Program-Name": "react"}
        await rig.chat(headers)
        await rig.chat(headers)
        await rig.client.delete(rig.url + "/autellix/v1/programs/p")
        await rig.chat({"X-Autellix-Program-ID": "q"})
        await rig.chat({"X-Autellix-Program-ID": "q"})
        first, second, third, fourth = (call.xargs for call in rig.engine.calls)
        assert 0 <= first["autellix_age_s"] < second["autellix_age_s"]
        assert first["autellix_work"] == 0.0
        program = await rig.store.program("q")
        assert program is not None
        assert second["autellix_work"] == program.work / 2 > 0
        assert first["autellix_class"] == second["autellix_class"] == "/react"
        assert "autellix_ended" not in second
        assert json.loads(third["autellix_ended"]) == ["p"]
        assert "autellix_ended" not in fourth


async def test_the_engine_gets_the_group(serve: Any) -> None:
    """And no client can name one past the gateway."""
    async with serve(policy="boost", reports=False) as rig:
        await rig.chat({"X-Autellix-Program-ID": "p", "X-Autellix-Group": "g17"})
        await rig.chat({"X-Autellix-Program-ID": "q"}, vllm_xargs={"autellix_group": "g17"})
        assert [call.xargs.get("autellix_group") for call in rig.engine.calls] == ["g17", None]


async def test_the_engine_gets_the_expected_return_of_each_call(serve: Any) -> None:
    async with serve(policy="boost", reports=False) as rig:
        for expected in ({"X-Autellix-Expected-Return": "2.5"}, {}):
            await rig.chat({"X-Autellix-Program-ID": "p", **expected})

        assert [call.xargs.get("autellix_return_s") for call in rig.engine.calls] == [2.5, None]
        answer = await rig.chat({"X-Autellix-Expected-Return": "soon"})
        assert answer["error"]["param"] == "X-Autellix-Expected-Return"


async def test_the_engine_gets_the_measured_spread_of_sizes(serve: Any) -> None:
    """So that one that was restarted does not begin anew."""
    async with serve(policy="boost", reports=False) as rig:
        for number in range(LEAST_PROGRAMS + 1):
            await rig.chat({"X-Autellix-Program-ID": f"p{number}"})
            await rig.client.delete(rig.url + f"/autellix/v1/programs/p{number}")
        told = [call.xargs.get("autellix_spread") for call in rig.engine.calls]
        assert told[:-1] == [None] * LEAST_PROGRAMS
        assert 0 < told[-1] < PRIOR_SPREAD


async def test_other_policies_get_none_of_it(serve: Any) -> None:
    async with serve(policy="plas") as rig:
        await rig.chat({"X-Autellix-Program-ID": "p"})
        await rig.client.delete(rig.url + "/autellix/v1/programs/p")
        await rig.chat({"X-Autellix-Program-ID": "q"})
        unread = {"autellix_age_s", "autellix_work", "autellix_class", "autellix_ended", "autellix_group"}
        assert [unread & call.xargs.keys() for call in rig.engine.calls] == [set(), set()]


async def test_admission_alone_reads_classes_and_ends(serve: Any) -> None:
    async with serve(policy="plas", admission="working_set") as rig:
        await rig.chat({"X-Autellix-Program-ID": "p", "X-Autellix-Program-Name": "react"})
        (call,) = rig.engine.calls
        assert call.xargs["autellix_class"] == "/react"
        assert "autellix_work" not in call.xargs


@pytest.mark.parametrize(("size_bytes", "rounds"), [(LONG_BODY_BYTES, 0), (LONG_BODY_BYTES + 1, 1)])
async def test_a_step_over_a_long_body_lets_others_advance(size_bytes: int, rounds: int) -> None:
    made = 0

    def count() -> None:
        nonlocal made
        made += 1

    asyncio.get_running_loop().call_soon(count)
    await pause_after(size_bytes)
    assert made == rounds
