"""What a tenant's client may say to the scheduler: nothing of its own, and nothing about other tenants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autellix_backend.gateway.tenancy.tenants import key_line, new_key
from autellix_wire import engine_args

PROGRAMS = "/autellix/v1/programs"
CHAT = "/v1/chat/completions"
ARGUMENTS = [value for name, value in vars(engine_args).items() if name.isupper()]
FORGED = {
    **dict.fromkeys(ARGUMENTS, "forged"),
    engine_args.AGE_S: 1e9,
    engine_args.WORK: 0.0,
    engine_args.WEIGHT: 1e6,
    engine_args.ENDED: json.dumps(["blue/run"]),
    engine_args.LAST: 0,
}


@pytest.fixture
def keys() -> dict[str, str]:
    return {name: new_key() for name in ("blue", "red")}


@pytest.fixture
def tenants_file(keys: Mapping[str, str], tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    tables = (f'[[tenant]]\nname = "{name}"\nkeys = ["{key_line(key)}"]\n' for name, key in keys.items())
    path.write_text("".join(tables))
    return path


def headers(keys: Mapping[str, str], tenant: str, program: str = "", **more: str) -> dict[str, str]:
    named = {"X-Autellix-Program-ID": program} if program else {}
    return {"Authorization": f"Bearer {keys[tenant]}", **named, **more}


def told(rig: Any) -> dict[str, Any]:
    """Return what the engine was told with the last call."""
    arguments: dict[str, Any] = rig.engine.calls[-1].json["vllm_xargs"]
    return arguments


def test_every_argument_of_ours_is_one_that_clients_may_not_set() -> None:
    assert len(ARGUMENTS) > 10
    assert all(name.startswith(engine_args.PREFIX) for name in ARGUMENTS)


async def test_forged_arguments_reach_no_engine(serve: Any, keys: dict[str, str], tenants_file: Path) -> None:
    async with serve(policy="boost", admission="auto", tenants_file=tenants_file) as rig:
        await rig.chat(headers(keys, "red", "run"), vllm_xargs={**FORGED, "kept": 1})

        arguments = told(rig)
        assert arguments.pop("kept") == 1
        assert arguments[engine_args.PROGRAM] == "red/run"
        assert (arguments[engine_args.TENANT], arguments[engine_args.WEIGHT]) == ("red", 1.0)
        assert arguments[engine_args.CLASS] == "red/unnamed"
        assert arguments[engine_args.WORK] == 0.0
        assert arguments[engine_args.AGE_S] < 60.0
        assert not {engine_args.ENDED, engine_args.LAST} & arguments.keys()


@pytest.mark.parametrize(("body", "stated"), [({}, None), ({"service_tier": "flex"}, "batch")])
async def test_a_call_tells_its_engine_its_priority_and_no_rank_inside_it(
    serve: Any, keys: dict[str, str], tenants_file: Path, body: dict[str, str], stated: str | None
) -> None:
    async with serve(policy="boost", admission="auto", tenants_file=tenants_file) as rig:
        await rig.chat(headers(keys, "red", "run"), **body)
        assert told(rig).get(engine_args.PRIORITY) == stated
        await rig.chat(headers(keys, "red", "run", **{"X-Autellix-Priority": "interactive"}), **body)
        assert told(rig)[engine_args.PRIORITY] == "interactive"
        await rig.chat(headers(keys, "red", "run"), priority=-9)
        assert told(rig)[engine_args.PRIORITY] == "interactive"

        sent = rig.engine.calls[-1].json
        assert "priority" not in sent
        answer = await rig.chat(headers(keys, "red", "run", **{"X-Autellix-Priority": "first"}))
        assert answer["error"]["param"] == "X-Autellix-Priority"


async def test_other_spellings_of_the_names_in_json_are_the_same_names(
    serve: Any, keys: dict[str, str], tenants_file: Path
) -> None:
    """Escapes and repetitions, which a parser behind the gateway might read otherwise."""
    body = (
        rb'{"model": "m", "messages": [], "vllm_xargs": {}, '
        rb'"vllm\u005fxargs": {"autellix\u005fage_s": 1e9, "autellix_weight": 9, "autellix_weight": 8}}'
    )
    async with serve(policy="boost", admission="auto", tenants_file=tenants_file) as rig:
        async with rig.client.post(rig.url + CHAT, data=body, headers=headers(keys, "red", "run")):
            pass

        assert rig.engine.calls[-1].body.count(b"xargs") == 1
        assert told(rig)[engine_args.AGE_S] < 60.0
        assert told(rig)[engine_args.WEIGHT] == 1.0


async def test_no_tenant_ends_a_program_of_another(
    serve: Any, keys: dict[str, str], tenants_file: Path
) -> None:
    async with serve(policy="boost", admission="auto", tenants_file=tenants_file) as rig:
        await rig.chat(headers(keys, "blue", "run"))
        for name in ("run", "blue/run"):
            async with rig.client.delete(f"{rig.url}{PROGRAMS}/{name}", headers=headers(keys, "red")):
                pass
            await rig.chat(headers(keys, "red", name, **{"X-Autellix-Final": "true"}))

        await rig.chat(headers(keys, "blue", "other"))

        assert engine_args.ENDED not in told(rig)
        assert await rig.store.program("blue/run") is not None
        # Its own tenant ends it.
        async with rig.client.delete(f"{rig.url}{PROGRAMS}/run", headers=headers(keys, "blue")):
            pass
        await rig.chat(headers(keys, "blue", "other"))
        assert json.loads(told(rig)[engine_args.ENDED]) == ["blue/run"]


DIALECTS: dict[str, dict[str, Any]] = {
    "router": {
        "vllm_xargs": {"agentic_context": {"program_id": "run", "priority": 9, "kv_retention_ttl": 1e9}}
    },
    "agent_hint": {"agent_hint": {"session_id": "run", "cache_control": {"ttl": 3600}}},
    "dynamo": {"nvext": {"agent_hints": {"strict_priority": 9}, "session_control": {"session_id": "run"}}},
    "dynamo closes": {"nvext": {"session_control": {"session_id": "run", "action": "close"}}},
    "openai": {"service_tier": "priority", "priority": -9},
}


@pytest.mark.parametrize("fields", DIALECTS.values(), ids=DIALECTS)
async def test_hints_in_the_words_of_other_tools_stay_with_their_tenant(
    serve: Any, keys: dict[str, str], tenants_file: Path, fields: dict[str, Any]
) -> None:
    """Both name the same program, group and class."""
    names = {"X-Autellix-Group": "task", "X-Autellix-Program-Name": "agent"}
    async with serve(policy="boost", admission="auto", tenants_file=tenants_file) as rig:
        await rig.chat(headers(keys, "blue", "run", **names))
        before = told(rig)
        await rig.chat(headers(keys, "red", **names), **fields)
        of_red = told(rig)
        assert (of_red[engine_args.TENANT], of_red[engine_args.WEIGHT]) == ("red", 1.0)
        assert of_red[engine_args.CLASS] == "red/agent"
        assert not of_red[engine_args.PROGRAM].startswith("blue/")
        assert not {"agent_hint", "nvext", "priority"} & rig.engine.calls[-1].json.keys()

        await rig.chat(headers(keys, "blue", "run", **names))
        after = told(rig)
        changing = {engine_args.CALL, engine_args.AGE_S, engine_args.WORK, engine_args.SPREAD}
        changing |= {engine_args.SERVICE_S, engine_args.PROGRAM_SERVICE_S, engine_args.WAIT_S}
        assert {
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        } <= changing
        assert await rig.store.program("blue/run") is not None
        async with rig.client.get(f"{rig.url}{PROGRAMS}", headers=headers(keys, "red")) as listed:
            assert "blue" not in await listed.text()
