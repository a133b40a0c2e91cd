"""The fields that engines receive, by their kind; clients' scheduling fields never reach one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.fakes.engine import FakeEngine

from autellix_backend.engines.base import EngineKind
from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.gateway.calls.outbound import (
    IDENTITY_FIELDS,
    PRIVILEGED_FIELDS,
    SESSION_HEADERS,
    SHARED_FIELDS,
    engine_body,
    engine_headers,
)

ORDERS: dict[str, Any] = {
    "priority": -9,
    "kv_transfer_params": {"do_remote_decode": True},
    "request_id": "another's",
    "session_id": "another's",
    "rid": "another's",
    "bootstrap_host": "10.0.0.1",
    "bootstrap_port": 8998,
    "bootstrap_room": 1,
    "data_parallel_rank": 3,
    "routed_dp_rank": 3,
    "disagg_prefill_dp_rank": 3,
}
ENGINE_HEADERS = {
    "x-data-parallel-rank": "3",
    "x-vllm-priority": "-9",
    "x-session-id": "another's",
    "x-gateway-destination-endpoint": "10.0.0.1:8000",
    "x-gateway-destination-endpoint-subset": "10.0.0.1:8000",
    "x-gateway-model-name-rewrite": "other",
    "x-gateway-inference-objective": "critical",
    "x-llm-d-inference-objective": "critical",
    "x-prefiller-host-port": "10.0.0.1:8000",
    "x-dynamo-session-id": "run",
    "cookie": "a=b",
    "x-forwarded-for": "10.0.0.1",
}


def sent(kind: EngineKind, fields: dict[str, Any], *, tenant: str = "") -> dict[str, Any]:
    body = parse_body(json.dumps(fields).encode(), CHAT_COMPLETIONS)
    decoded: dict[str, Any] = json.loads(engine_body(body, kind, {"autellix_call": "c"}, tenant=tenant))
    return decoded


@pytest.mark.parametrize("kind", EngineKind)
def test_a_clients_scheduling_fields_reach_no_engine(kind: EngineKind) -> None:
    assert set(ORDERS) == PRIVILEGED_FIELDS
    assert not PRIVILEGED_FIELDS & set(sent(kind, {"model": "m", **ORDERS}))
    headers = engine_headers({**ENGINE_HEADERS, "authorization": "Bearer k"}, kind, "p")
    passed = {"accept-encoding", "authorization", "content-type"}
    assert set(headers) - set(SESSION_HEADERS) == passed
    assert headers.get("x-session-id", "p") == "p"


@pytest.mark.parametrize("kind", EngineKind)
def test_a_tenant_names_no_session_or_priority_that_an_engine_s_other_clients_share(kind: EngineKind) -> None:
    """SGLang would go on from the context of another tenant's session."""
    fields: dict[str, Any] = {"session_params": {"id": "s", "rid": "r"}, "agent_hint": {"session_id": "s"}}
    fields["nvext"] = {"session_control": {"session_id": "s", "action": "close"}}
    assert fields.keys() == SHARED_FIELDS
    assert not SHARED_FIELDS & sent(kind, {"model": "m", **fields}, tenant="lab").keys()


def test_vllm_gets_the_identity_beside_the_clients_own_arguments() -> None:
    own: dict[str, Any] = {
        "kept": [1.0],
        "autellix_service_s": -1,
        "session_id": "s",
        "kv_transfer_params": "x",
    }
    own["agentic_context"] = {"program_id": "p"}
    fields = sent(EngineKind.VLLM, {"model": "m", "vllm_xargs": own, "program_id": "kept"})
    assert fields == {
        "model": "m",
        "vllm_xargs": {"kept": [1.0], "autellix_call": "c"},
        "program_id": "kept",
    }
    assert sent(EngineKind.VLLM, {"vllm_xargs": None}) == {"vllm_xargs": {"autellix_call": "c"}}


def test_sglang_gets_no_vllm_arguments() -> None:
    fields = {"model": "m", "extra_key": "mine", "vllm_xargs": {"mine": 1}}
    assert sent(EngineKind.SGLANG, fields) == {"model": "m", "extra_key": "mine"}


def test_a_hosted_api_gets_only_what_openai_has() -> None:
    names: dict[str, Any] = dict.fromkeys(IDENTITY_FIELDS - {"vllm_xargs", "extra_body"}, "x")
    openai: dict[str, Any] = {
        "model": "m",
        "metadata": {"session_id": "s"},
        "prompt_cache_key": "k",
        "user": "jane",
    }
    openai |= {"conversation": "c", "client_metadata": {"session_id": "s"}}
    everything = {**openai, **names, "vllm_xargs": {}, "extra_body": {"program_id": "x"}}
    assert sent(EngineKind.OPENAI, everything, tenant="lab") == openai


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_only_vllm_gets_the_program_as_its_session(name: str) -> None:
    """In place of what the client says there; also under the names that routers before it read."""
    headers = {name: "another's"}
    assert engine_headers(headers, EngineKind.VLLM, "lab/run")[name] == "lab/run"
    assert name not in engine_headers(headers, EngineKind.SGLANG, "run")
    assert name not in engine_headers(headers, EngineKind.OPENAI, "run")


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.SGLANG])
def test_a_tenants_prefix_cache_is_its_own_and_its_clients_salts_divide_it(kind: EngineKind) -> None:
    def salt(tenant: str, *own: Any) -> Any:
        return sent(kind, {"cache_salt": own[0]} if own else {}, tenant=tenant).get("cache_salt")

    assert salt("") is None
    assert salt("", "mine") == "mine"
    salts = [salt("a"), salt("b"), salt("a", "x"), salt("b", "x"), salt("a", "y")]
    assert len(set(salts)) == len(salts)
    assert salt("a", "x") == salt("a", "x")
    # vLLM allows 128 characters and none of @ / \\; what is no text takes nobody's place.
    assert all(len(value) <= 128 and value.isalnum() for value in [*salts, salt("a", "x" * 500)])
    assert salt("a", ["b"]) == salt("a", None) == salt("a")


@pytest.mark.parametrize("kind", EngineKind)
async def test_a_call_through_the_gateway_leaves_as_its_engine_takes_it(serve: Any, kind: EngineKind) -> None:
    async with serve(engine=FakeEngine(kind=kind)) as rig:
        await rig.chat({**ENGINE_HEADERS, "X-Autellix-Program-ID": "p"}, program_id="q", **ORDERS)
        [call] = rig.engine.calls
        assert not PRIVILEGED_FIELDS & set(call.json)
        assert ("vllm_xargs" in call.json) is (kind is EngineKind.VLLM)
        assert ("program_id" in call.json) is (kind is not EngineKind.OPENAI)
        assert call.headers.get("x-session-id") == ("p" if kind is EngineKind.VLLM else None)
        assert not (set(ENGINE_HEADERS) - set(SESSION_HEADERS)) & set(call.headers)


async def test_an_engine_whose_kind_shows_after_the_gateways_start_gets_its_fields(serve: Any) -> None:
    """As where both start at once: until it answers, an engine counts as a hosted API."""
    async with serve(engine=FakeEngine(kind=EngineKind.OPENAI)) as rig:
        rig.engine.kind = EngineKind.VLLM
        await rig.chat({"X-Autellix-Program-ID": "p"})

        [call] = rig.engine.calls
        assert call.json["vllm_xargs"]["autellix_program"] == "p"
        assert call.headers["x-session-id"] == "p"


async def test_engines_get_each_call_that_nothing_identified_as_a_program_of_its_own(serve: Any) -> None:
    """What a process calls outside of programs is one program to us, and many to the engine."""
    process = {"X-Autellix-Program-ID": "process", "X-Autellix-Flags": "implicit"}
    async with serve(engine=FakeEngine(kind=EngineKind.VLLM), policy="boost") as rig:
        for headers in (process, process, {}, {"X-Autellix-Program-ID": "mine"}):
            await rig.chat(headers)
        first, second, anonymous, mine = (call.json["vllm_xargs"] for call in rig.engine.calls)

        assert len({args["autellix_program"] for args in (first, second, anonymous, mine)}) == 4
        assert mine["autellix_program"] == "mine"
        for args in (first, second, anonymous):
            assert (args["autellix_unidentified"], args["autellix_last"], args["autellix_work"]) == (1, 1, 0)
        assert not {"autellix_unidentified", "autellix_last"} & set(mine)
        await rig.settled()
        _, listed = await rig.get("/autellix/v1/programs")
        counts = {each["program_id"]: each["finished_calls"] for each in listed["programs"]}
        assert counts["process"] == 2
