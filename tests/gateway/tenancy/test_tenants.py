"""Tenants: authentication, visibility, and isolation of their ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.engine import FakeEngine

from autellix_backend.assembly import create_app
from autellix_backend.gateway.errors import InvalidKeyError
from autellix_backend.gateway.tenancy.file import load_tenants, read_tenants
from autellix_backend.gateway.tenancy.tenants import Tenant, Tenants, key_line
from autellix_backend.settings import (
    EngineSettings,
    GatewaySettings,
    Settings,
    SettingsError,
    TenantLimits,
    fields_of,
)

CHAT = "/v1/chat/completions"
SESSIONS = "/autellix/v1/sessions"
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "self-hosting.md"
PROGRAMS = "/autellix/v1/programs"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}
KEYS = {name: f"sk-autellix-of-{name}" for name in ("red", "blue", "ops")}
UNTIMED = settings(deadline=None)
IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)


def bearer(name: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}", **headers}


@pytest.fixture
def tenants_file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(
        f"""
        [[tenant]]
        name = "red"
        weight = 2
        keys = ["{key_line(KEYS["red"])}"]
        [[tenant]]
        name = "blue"
        keys = ["{key_line(KEYS["blue"])}"]
        [[tenant]]
        name = "ops"
        admin = true
        keys = ["{key_line(KEYS["ops"])}"]
        """
    )
    return path


def test_the_file_is_read_whole(tenants_file: Path) -> None:
    with tenants_file.open("a") as file:
        file.write('[tenant.limits]\nprogram_tokens = 3\nmax_calls = "none"\n')

    red, blue, ops = read_tenants(tenants_file, TenantLimits(max_calls=8, program_tokens=1)).values()

    assert red == Tenant(name="red", weight=2.0, limits=TenantLimits(max_calls=8, program_tokens=1))
    assert (blue.weight, blue.is_admin, ops.is_admin) == (1.0, False, True)
    assert ops.limits == TenantLimits(program_tokens=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["tenant (", "one [[tenant]] or more"]),
        ("tenant = 1", ["tenant (", "one [[tenant]] or more"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\n[other]", ["other", "is unknown"]),
        ("[[tenant]]", ["tenant 1: name", "is missing"]),
        ("[[tenant]]\nname = 'A/b'", ["tenant 1: name", "'A/b'"]),
        ("[[tenant]]\nname = 'a'", ['tenant "a": keys', "autellix keys new"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['sk-autellix-secret']", ['tenant "a": keys', "number 1"]),
        ("[[tenant]]\nname = 'a'\nkeys = 'KEY'", ['tenant "a": keys']),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nwight = 2", ['tenant "a": wight', "weight"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nweight = 0", ['tenant "a": weight', "greater than 0"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nweight = nan", ['tenant "a": weight']),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nweight = true", ['tenant "a": weight']),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nadmin = 'yes'", ['tenant "a": admin']),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nsort_tools = 1", ['tenant "a": sort_tools']),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nlimits = 7", ['tenant "a": limits']),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nlimits.x = 7", ['tenant "a": limits.x', "max_calls"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nlimits.max_calls = 0", ['tenant "a": limits.max_calls']),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nlimits.max_calls = 'x'", ["limits.max_calls", '"none"']),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\n" * 2, ['tenant "a": name', "twice"]),
        (
            "[[tenant]]\nname = 'a'\nkeys = ['KEY']\n[[tenant]]\nname = 'b'\nkeys = ['KEY']\n",
            ['tenant "b": keys', 'tenant "a"'],
        ),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY until 2027-02-30']", ['tenant "a": keys', "2027-02-30"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY until 2027-02-28', 'KEY']", ["number 2", "each key once"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY until soon']", ['tenant "a": keys', "number 1"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nmodels = []", ['tenant "a": models', "all models"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nmodels = 'm'", ['tenant "a": models', "list of names"]),
        ("[[tenant]]\nname = 'a'\nkeys = ['KEY']\nmodels = [1]", ['tenant "a": models', "list of names"]),
        ("[[tenant", ["is not TOML"]),
    ],
)
def test_a_faulty_file_is_refused_with_its_place(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text.replace("KEY", key_line("k")))
    with pytest.raises(SettingsError) as caught:
        read_tenants(path, TenantLimits())
    for word in (str(path), *words):
        assert word in str(caught.value)
    assert "sk-autellix-secret" not in str(caught.value)


def test_the_guides_example_is_a_tenants_file_and_its_table_names_every_limit(tmp_path: Path) -> None:
    guide = GUIDE.read_text()
    path = tmp_path / "tenants.toml"
    path.write_text(guide.split("```toml\n")[1].split("```")[0])
    research, operators = read_tenants(path, TenantLimits(max_calls=3)).values()
    assert (research.weight, research.limits.max_calls, operators.limits.max_calls) == (2.0, None, 3)
    assert operators.is_admin
    for name in fields_of("limits"):
        assert f"`{name}`" in guide


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = Settings(gateway=GatewaySettings(tenants_file=tmp_path / "none.toml"))
    with pytest.raises(SettingsError, match=r"gateway\.tenants_file: cannot read .*none\.toml"):
        load_tenants(settings)


@UNTIMED
@given(names=st.tuples(NAMES, NAMES), ids=st.tuples(IDS, IDS))
def test_ids_of_two_tenants_never_meet(names: tuple[str, str], ids: tuple[str, str]) -> None:
    one, other = (Tenant(name=name) for name in names)
    mine, theirs = one.scoped(ids[0]), other.scoped(ids[1])
    assert (mine == theirs) == ((names[0], ids[0]) == (names[1], ids[1]))
    assert one.shown(mine) == ids[0]
    assert one.owns(mine)
    assert one.owns(theirs) == (names[0] == names[1])


@UNTIMED
@given(st.text(max_size=60))
def test_an_unknown_key_is_refused(key: str) -> None:
    tenants = Tenants({bytes.fromhex(key_line(KEYS["red"])[7:]): Tenant(name="red")})
    for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"authorization": key}):
        with pytest.raises(InvalidKeyError):
            tenants.authenticate(headers)
    assert tenants.authenticate({"authorization": f"bearer  {KEYS['red']} "}).name == "red"
    assert tenants.authenticate({"x-api-key": KEYS["red"]}).name == "red"


@pytest.fixture
def restricted_file(tenants_file: Path) -> Path:
    """The tenants, of which blue may call one model only."""
    text = tenants_file.read_text()
    tenants_file.write_text(text.replace('name = "blue"', 'name = "blue"\nmodels = ["small"]'))
    return tenants_file


@pytest.fixture
def sorting_file(tenants_file: Path) -> Path:
    """The tenants, of which blue has its tools sorted."""
    text = tenants_file.read_text()
    tenants_file.write_text(text.replace('name = "blue"', 'name = "blue"\nsort_tools = true'))
    return tenants_file


@pytest.mark.parametrize(("tenant", "names"), [("red", ["b", "a"]), ("blue", ["a", "b"])])
async def test_the_tools_of_a_tenant_that_asks_for_it_are_sorted(
    serve: Any, sorting_file: Path, tenant: str, names: list[str]
) -> None:
    body = {**HELLO, "tools": [{"type": "function", "function": {"name": name}} for name in ("b", "a")]}
    async with serve(tenants_file=sorting_file) as rig:
        async with rig.client.post(rig.url + CHAT, json=body, headers=bearer(tenant)) as response:
            assert response.status == 200
        sent = json.loads(rig.engine.requests[-1].body)
    assert [tool["function"]["name"] for tool in sent["tools"]] == names


async def test_a_tenant_calls_its_own_models_only(serve: Any, restricted_file: Path) -> None:
    """In calls, in requests that are passed on, and in the list."""
    async with serve(tenants_file=restricted_file) as rig:
        for model, status in (("autellix.fake-model", 404), (None, 404), ("small", 200)):
            body = {**HELLO, "model": model} if model else {"messages": HELLO["messages"]}
            for path in (CHAT, "/tokenize"):
                async with rig.client.post(rig.url + path, json=body, headers=bearer("blue")) as response:
                    assert response.status == status, (path, model)
                    if status == 404:
                        assert (await response.json())["error"]["code"] == "model_not_found"
        sent = {request.path for request in rig.engine.requests if b"autellix.fake-model" in request.body}
        assert sent == set()
        async with rig.client.get(rig.url + "/v1/models", headers=bearer("blue")) as response:
            assert [each["id"] for each in (await response.json())["data"]] == ["small"]
        async with rig.client.post(rig.url + CHAT, json=HELLO, headers=bearer("red")) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": 1, "model": "big"}',
        b'{"model": "small", "model": "big"}',
        rb'{"mod\u0065l": "big"}',
        b'{"model": ["big"]}',
        b'{"model": "small "}',
        b'{"model": "big", "x": NaN}',
        rb'{"model": "big", "x": "\ud800"}',
        b'\xef\xbb\xbf{"model": "big"}',
        '{"model": "big"}'.encode("utf-16"),
        b'{"model": "big", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'["big"]',
        b"model=big",
        b"",
    ],
)
async def test_no_form_of_a_body_hides_a_model(serve: Any, restricted_file: Path, body: bytes) -> None:
    """Servers read more than the gateway: Python's parser takes UTF-16 and NaN."""
    paths = (CHAT, "/v1/embeddings", "/tokenize", "/detokenize", "/v1/messages/count_tokens")
    async with serve(tenants_file=restricted_file) as rig:
        for path in paths:
            async with rig.client.post(
                rig.url + path + "?model=small", data=body, headers=bearer("blue")
            ) as response:
                assert response.status in (400, 404), path
        assert not [each.path for each in rig.engine.requests if each.method == "POST"]


async def test_a_tenant_with_models_names_no_others_beside(serve: Any, restricted_file: Path) -> None:
    """LiteLLM, SGLang and OpenRouter read further models of a call."""
    others = {"models": ["big"], "fallbacks": ["big"], "lora_path": "big"}
    async with serve(tenants_file=restricted_file) as rig:
        for tenant, kept in (("blue", set[str]()), ("red", set(others))):
            async with rig.client.post(
                rig.url + CHAT, json={**HELLO, "model": "small", **others}, headers=bearer(tenant)
            ) as response:
                assert response.status == 200
            assert rig.engine.calls[-1].json.keys() & others.keys() == kept


async def test_a_stored_response_is_cancelled_without_a_model(serve: Any, restricted_file: Path) -> None:
    async with serve(tenants_file=restricted_file) as rig:
        path = "/v1/responses/resp_1/cancel"
        async with rig.client.post(rig.url + path, json={}, headers=bearer("blue")) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("old", "new"), [(f'"{key_line(KEYS["ops"])}"', f'"{key_line(KEYS["red"])[:-1]}0"'), ("admin = true", "")]
)
async def test_a_feed_ends_with_its_key_and_its_rights(
    serve: Any, tenants_file: Path, old: str, new: str
) -> None:
    changed = tenants_file.read_text().replace(old, new)  # noqa: ASYNC240
    async with (
        serve(tenants_file=tenants_file) as rig,
        rig.client.get(rig.url + "/autellix/v1/events", headers=bearer("ops")) as feed,
    ):
        assert await feed.content.readuntil(b"\n\n") == b": listening\n\n"
        tenants_file.write_text(changed)  # noqa: ASYNC240
        rig.app.state.gateway.tenants.reload()
        async with rig.client.post(rig.url + CHAT, json=HELLO, headers=bearer("red")) as response:
            assert response.status == 200
        assert await feed.content.read() == b""


async def test_every_path_except_the_probes_needs_a_key(serve: Any, tenants_file: Path) -> None:
    paths = (
        ("POST", CHAT),
        ("GET", "/v1/models"),
        ("POST", SESSIONS),
        ("DELETE", SESSIONS + "/s"),
        ("GET", PROGRAMS),
        ("GET", PROGRAMS + "/p"),
        ("GET", "/autellix/v1/engines"),
        ("GET", "/autellix/v1/config"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
    )

    async with serve(tenants_file=tenants_file) as rig:
        for method, path in paths:
            for headers in ({}, {"Authorization": "Bearer sk-wrong"}, {"Authorization": "Basic eA=="}):
                async with rig.client.request(method, rig.url + path, headers=headers) as response:
                    assert response.status == 401, path
                    assert (await response.json())["error"]["code"] == "invalid_api_key"
                    assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/healthz", "/readyz", "/health", "/ping"):
            async with rig.client.get(rig.url + path) as response:
                assert response.status == 200
        assert not rig.engine.calls
        async with rig.client.get(rig.url + "/metrics", headers=bearer("ops")) as response:
            text = await response.text()
        assert 'autellix_refusals_total{reason="invalid_api_key",tenant=""} 30.0' in text


async def test_official_clients_authenticate_with_their_keys(serve: Any, tenants_file: Path) -> None:
    async with serve(tenants_file=tenants_file) as rig:
        async with openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key=KEYS["red"]) as client:
            await client.chat.completions.create(**HELLO)
            assert (await client.models.list()).data
        async with openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="sk-wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.chat.completions.create(**HELLO)
        assert caught.value.code == "invalid_api_key"
        (call,) = rig.engine.calls
        assert (call.xargs["autellix_tenant"], call.xargs["autellix_weight"]) == ("red", 2.0)


async def test_two_tenants_with_the_same_ids_share_nothing(serve: Any, tenants_file: Path) -> None:
    ids = {"X-Autellix-Program-ID": "p", "X-Autellix-Session-ID": "s"}

    async with serve(tenants_file=tenants_file) as rig:
        for name in ("red", "blue"):
            start = rig.client.post(rig.url + SESSIONS, json={"session_id": "s"}, headers=bearer(name))
            async with start as response:
                # New for each of them.
                assert response.status == 201
                assert (await response.json())["session_id"] == "s"
        for name in ("red", "red", "blue"):
            body = rig.client.post(rig.url + CHAT, json=HELLO, headers=bearer(name, **ids))
            async with body as response:
                assert response.headers["X-Autellix-Program-ID"] == "p"
                assert (await response.json())["autellix"]["program_id"] == "p"
        told = [call.xargs["autellix_service_s"] for call in rig.engine.calls]
        assert told == pytest.approx([0.0, 0.04, 0.0])
        assert [call.xargs["autellix_program"] for call in rig.engine.calls] == [
            "red/p",
            "red/p",
            "blue/p",
        ]
        for name, count in (("red", 2), ("blue", 1)):
            async with rig.client.get(rig.url + PROGRAMS, headers=bearer(name)) as response:
                (program,) = (await response.json())["programs"]
            assert (program["program_id"], program["session_ids"]) == ("p", ["s"])
            assert program["finished_calls"] == count
        async with rig.client.get(rig.url + PROGRAMS, headers=bearer("ops")) as response:
            seen = [program["program_id"] for program in (await response.json())["programs"]]
        assert seen == ["red/p", "blue/p"]


async def test_a_tenant_can_neither_see_nor_end_anothers_programs(serve: Any, tenants_file: Path) -> None:
    async with serve(tenants_file=tenants_file) as rig:
        start = rig.client.post(rig.url + SESSIONS, json={"session_id": "s"}, headers=bearer("red"))
        async with start as response:
            token = (await response.json())["token"]
        headers = bearer("red", **{"X-Autellix-Program-ID": "p", "X-Autellix-Session-ID": "s"})
        async with rig.client.post(rig.url + CHAT, json=HELLO, headers=headers) as response:
            assert response.status == 200

        async def status(method: str, path: str, name: str) -> int:
            async with rig.client.request(method, rig.url + path, headers=bearer(name)) as response:
                return int(response.status)

        for program in ("p", "red/p", "red%2Fp", "../red/p"):
            assert await status("GET", f"{PROGRAMS}/{program}", "blue") == 404
            assert await status("DELETE", f"{PROGRAMS}/{program}", "blue") == 404
        for session in ("s", "red/s"):
            assert await status("DELETE", f"{SESSIONS}/{session}", "blue") == 404
            assert await status("POST", f"{SESSIONS}/{session}/heartbeat", "blue") == 404
            assert await status("GET", f"{SESSIONS}/{session}/watch", "blue") == 404
        # A stolen token is invalid under another key: the call is anonymous, in the thief's tenant.
        stolen = bearer("blue", **{"X-Autellix-Session-ID": "s", "X-Autellix-Session-Token": token})
        stolen["X-Autellix-Call-ID"] = "red/p"
        async with rig.client.post(rig.url + CHAT, json=HELLO, headers=stolen) as response:
            assert response.headers["X-Autellix-Identity-Source"] == "foreign-token"
        assert rig.engine.calls[-1].xargs["autellix_program"] == "blue/red/p"
        for path in ("/autellix/v1/engines", "/autellix/v1/config", "/metrics"):
            assert await status("GET", path, "blue") == 403
            assert await status("GET", path, "ops") == 200
        assert await status("GET", PROGRAMS + "/red/p", "ops") == 200
        assert await status("DELETE", PROGRAMS + "/red/p", "ops") == 204
        assert await status("GET", PROGRAMS + "/p", "red") == 404


@pytest.mark.parametrize(
    ("has_tenants", "api_key", "expected"),
    [
        (True, None, None),
        (True, "sk-engine", "Bearer sk-engine"),
        (False, "sk-engine", "Bearer sk-engine"),
        (False, None, f"Bearer {KEYS['red']}"),
    ],
)
async def test_an_engine_sees_no_key_of_the_gateway(
    listen: Any, tenants_file: Path, has_tenants: bool, api_key: str | None, expected: str | None
) -> None:
    engine = FakeEngine()
    await engine.start()
    settings = Settings(
        gateway=GatewaySettings(tenants_file=tenants_file if has_tenants else None),
        engine=EngineSettings(api_key=api_key),
    )
    headers = {"x-api-key": KEYS["red"]}
    async with (
        listen(create_app(settings, engine)) as url,
        openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEYS["red"], default_headers=headers) as client,
    ):
        await client.chat.completions.create(**HELLO)
    await engine.stop()
    sent = dict(engine.calls[0].headers)
    assert sent.pop("authorization", None) == expected
    # An open gateway has no keys of its own: what clients send is the engine's.
    is_open = not has_tenants and api_key is None
    assert sent.pop("x-api-key", None) == (KEYS["red"] if is_open else None)
    assert KEYS["red"] not in json.dumps(sent)


def test_a_reload_changes_the_keys_unless_the_file_is_faulty(tenants_file: Path) -> None:
    tenants = load_tenants(Settings(gateway=GatewaySettings(tenants_file=tenants_file)))
    shown = {"authorization": f"Bearer {KEYS['red']}"}
    assert tenants.authenticate(shown).name == "red"
    tenants_file.write_text("[[tenant]]")
    with pytest.raises(SettingsError):
        tenants.reload()
    assert tenants.authenticate(shown).name == "red"
    tenants_file.write_text(f'[[tenant]]\nname = "pink"\nkeys = ["{key_line(KEYS["red"])}"]')
    tenants.reload()
    assert tenants.authenticate(shown).name == "pink"
