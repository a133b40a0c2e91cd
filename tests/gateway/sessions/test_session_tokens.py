"""Session tokens, with and without strict identity."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.gateway.conftest import CHAT, HELLO, Rig, Serve
from tests.stores.tables import all_programs
from tests.waiting import PATIENCE_S, until

from autellix_backend.gateway.http import parameters
from autellix_backend.gateway.sessions import running_sessions
from autellix_backend.gateway.tenancy.tenants import key_line, new_key
from autellix_backend.settings import GatewaySettings, Settings, SettingsError, settings_to_mapping

SECRET = "sixteen characters or more"


def headers(session: str, program: str = "p", token: str | None = None) -> dict[str, str]:
    found = {"X-Autellix-Session-ID": session, "X-Autellix-Program-ID": program}
    return found if token is None else {**found, "X-Autellix-Session-Token": token}


SESSIONS = "/autellix/v1/sessions"
PROGRAMS = "/autellix/v1/programs"
HISTORY = "/autellix/v1/history"


async def start(rig: Rig, session: str, proof: str | None = None) -> str:
    status, body = await post(rig, session, proof)
    assert status in (200, 201), body
    token: str = body["token"]
    return token


async def post(
    rig: Rig, session: str, proof: str | None = None, token: str | None = None, key: str | None = None
) -> tuple[int, dict[str, Any]]:
    body = {"session_id": session} if proof is None else {"session_id": session, "proof": proof}
    sent = {} if token is None else {"X-Autellix-Session-Token": token}
    if key is not None:
        sent["Authorization"] = f"Bearer {key}"
    async with rig.client.post(rig.url + SESSIONS, json=body, headers=sent) as answer:
        return answer.status, await answer.json()


async def delete(rig: Rig, path: str, **named: Any) -> int:
    async with rig.client.delete(rig.url + path, headers=headers(**named) if named else {}) as answer:
        return answer.status


async def call(rig: Rig, **named: Any) -> tuple[int, dict[str, Any], Any]:
    async with rig.client.post(rig.url + CHAT, json=HELLO, headers=headers(**named)) as answer:
        return answer.status, await answer.json(), answer.headers


@pytest.mark.parametrize("token", ["", "v1.nonsense", "ü", None])
async def test_strict_gateway_refuses_calls_without_a_token(serve: Serve, token: str | None) -> None:
    """A missing token is waited for, and may be retried; a wrong one is final."""

    async with serve(strict_identity=True) as rig:
        other = await start(rig, "other") if token == "" else token
        named = {"session": "mine"} if other is None else {"session": "mine", "token": other}
        status, body, answered = await call(rig, **named)
        error = body["error"]
        assert (status, error["code"]) == (401, "invalid_session_token")
        assert error["param"] == "X-Autellix-Session-Token"
        assert "gateway.strict_identity" in error["message"]
        assert ("x-should-retry" in answered) == (token is None)
        assert await all_programs(rig.store) == []


async def test_strict_gateway_refuses_calls_without_a_session(serve: Serve) -> None:
    async with serve(strict_identity=True) as rig, rig.client.post(rig.url + CHAT, json=HELLO) as answer:
        assert answer.status == 401
        assert "x-should-retry" not in answer.headers


async def test_first_call_of_a_session_needs_no_token_yet(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client starts its session beside its first call, which is admitted once that has happened."""
    monkeypatch.setattr(running_sessions, "START_WINDOW_S", PATIENCE_S)

    async with serve(strict_identity=True) as rig:
        asked: list[str] = []
        owner = rig.store.session_owner

        async def noted(session_id: str) -> str | None:
            asked.append(session_id)
            return await owner(session_id)

        with patch.object(rig.store, "session_owner", noted):
            first = asyncio.create_task(call(rig, session="mine"))
            # Again and again: it waits.
            await until(lambda: len(asked) > 2)
        assert not first.done()
        await start(rig, "mine")
        assert (await first)[0] == 200
        assert (await call(rig, session="mine"))[0] == 200


async def test_a_running_session_has_no_grace_for_missing_tokens(serve: Serve) -> None:
    """Who learns the id of a running session cannot call by it, not even after starting it again."""

    now_s = time.monotonic()

    async with serve(strict_identity=True, clock=lambda: now_s) as rig:
        await start(rig, "mine", "own")
        now_s += running_sessions.START_WINDOW_S + 0.1
        assert (await call(rig, session="mine"))[0] == 401
        await start(rig, "mine", "own")
        assert (await call(rig, session="mine"))[0] == 401


async def test_foreign_token_makes_a_call_anonymous(serve: Serve) -> None:
    """Without strict identity it is answered, and joins no other program."""

    async with serve() as rig:
        token = await start(rig, "thief")
        assert (await call(rig, session="mine", program="mine"))[0] == 200
        status, body, answered = await call(rig, session="mine", program="mine", token=token)
        assert status == 200
        assert body["autellix"]["program_id"] != "mine"
        assert answered["X-Autellix-Identity-Source"] == "foreign-token"
        view = await rig.store.program("mine")
        assert view is not None
        assert view.finished_calls == 1


async def test_gateways_with_one_secret_agree(serve: Serve) -> None:
    """A restarted gateway does not know the session yet; its client's next heartbeat starts it again."""
    async with serve(strict_identity=True, token_secret=SECRET) as one:
        token = await start(one, "mine", "own")
    async with serve(strict_identity=True, token_secret=SECRET) as other:
        assert (await call(other, session="mine", token=token))[0] == 200
        assert await start(other, "mine", "own") == token
        assert (await call(other, session="mine", token=token))[0] == 200
    async with serve(strict_identity=True) as stranger:
        assert (await call(stranger, session="mine", token=token))[0] == 401


def test_secret_is_checked_and_not_shown() -> None:
    with pytest.raises(
        SettingsError,
        match=r"gateway.token_secret: cannot be used; .* 16 characters",
    ):
        GatewaySettings(token_secret="short")
    shown = settings_to_mapping(Settings(gateway=GatewaySettings(token_secret=SECRET)))
    assert shown["gateway"]["token_secret"] == "(hidden)"


async def test_a_running_sessions_token_goes_to_its_owner_only(serve: Serve) -> None:
    async with serve(strict_identity=True) as rig:
        token = await start(rig, "mine", "own")
        for proof in (None, "other"):
            status, refusal = await post(rig, "mine", proof)
            assert (status, refusal["error"]["code"]) == (409, "session_taken")
            assert token not in str(refusal)
        # The answer was lost.
        status, again = await post(rig, "mine", "own")
        assert (status, again["token"]) == (200, token)


async def test_a_client_without_a_proof_starts_its_session_again_by_its_token(serve: Serve) -> None:
    async with serve(strict_identity=True) as rig:
        token = await start(rig, "mine")
        assert (await post(rig, "mine"))[0] == 409
        status, again = await post(rig, "mine", token=token)
        assert (status, again["token"]) == (200, token)


async def test_a_token_is_bound_to_the_key_that_started_the_session(serve: Serve, tmp_path: Path) -> None:
    """Two keys of one tenant: its clients see the same ids, and yet are not each other."""
    keys = (new_key(), new_key())
    hashes = ", ".join(f'"{key_line(key)}"' for key in keys)
    (tmp_path / "tenants.toml").write_text(f'[[tenant]]\nname = "team"\nkeys = [{hashes}]\n')
    async with serve(strict_identity=True, tenants_file=tmp_path / "tenants.toml") as rig:
        status, started = await post(rig, "mine", key=keys[0])
        assert status == 201
        token = started["token"]
        assert (await post(rig, "mine", key=keys[0]))[1]["token"] == token
        assert (await post(rig, "mine", key=keys[1]))[0] == 409
        for key, expected in zip(keys, (200, 401), strict=True):
            sent = {**headers("mine", token=token), "Authorization": f"Bearer {key}"}
            async with rig.client.post(rig.url + CHAT, json=HELLO, headers=sent) as answer:
                assert answer.status == expected
        stranger = (await post(rig, "other", key=keys[1]))[1]["token"]
        sent = {**headers("other", token=stranger), "Authorization": f"Bearer {keys[1]}"}
        async with rig.client.post(rig.url + CHAT, json=HELLO, headers=sent) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (403, "foreign_program")


async def test_a_program_belongs_to_its_sessions_owner(serve: Serve) -> None:
    """Another client's token opens neither the program, nor ends it by a final call or a DELETE."""
    async with serve(strict_identity=True) as rig:
        own, again = await start(rig, "mine", "own"), await start(rig, "second", "own")
        foreign = await start(rig, "theirs", "other")
        assert (await call(rig, session="mine", program="p", token=own))[0] == 200
        status, body, _ = await call(rig, session="theirs", program="p", token=foreign)
        assert (status, body["error"]["code"]) == (403, "foreign_program")
        final = {**headers("theirs", "p", foreign), "X-Autellix-Final": "true"}
        async with rig.client.post(rig.url + CHAT, json=HELLO, headers=final) as answer:
            assert answer.status == 403
        assert await delete(rig, PROGRAMS + "/p", session="theirs", token=foreign) == 404
        assert await delete(rig, PROGRAMS + "/p") == 401
        view = await rig.store.program("p")
        assert view is not None
        assert view.finished_calls == 1
        # Another session of the same client may go on with it.
        assert (await call(rig, session="second", program="p", token=again))[0] == 200
        assert await delete(rig, PROGRAMS + "/p", session="mine", token=own) == 204


async def test_requests_about_a_session_need_its_token(serve: Serve) -> None:
    async with serve(strict_identity=True) as rig:
        own, foreign = await start(rig, "mine", "own"), await start(rig, "theirs", "other")
        for sent in ({}, headers("mine", token=foreign)):
            for method, path in (("POST", "/mine/heartbeat"), ("GET", "/mine/watch"), ("DELETE", "/mine")):
                async with rig.client.request(method, rig.url + SESSIONS + path, headers=sent) as answer:
                    assert answer.status == 401
        async with rig.client.post(
            rig.url + SESSIONS + "/mine/heartbeat", headers=headers("mine", token=own)
        ) as answer:
            assert answer.status == 200
        assert await delete(rig, SESSIONS + "/mine", session="mine", token=own) == 204


def proven(session: str, program: str, proof: str) -> dict[str, str]:
    return {**headers(session, program), "X-Autellix-Session-Proof": proof}


async def test_a_proof_on_each_request_needs_no_token(serve: Serve) -> None:
    """Not even a session that has started: its client tells of it beside its calls."""
    async with serve(strict_identity=True) as rig:
        for expected, sent in (
            (200, proven("mine", "p", "own")),
            (200, proven("second", "p", "own")),
            (403, proven("theirs", "p", "other")),
        ):
            async with rig.client.post(rig.url + CHAT, json=HELLO, headers=sent) as answer:
                assert answer.status == expected
        await start(rig, "mine", "own")
        for method, path in (("POST", "/mine/heartbeat"), ("DELETE", "/mine")):
            for allowed, proof in (([401], "other"), ([200, 204], "own")):
                sent = proven("mine", "p", proof)
                async with rig.client.request(method, rig.url + SESSIONS + path, headers=sent) as answer:
                    assert answer.status in allowed


async def test_a_proof_opens_no_session_of_another(serve: Serve) -> None:
    """The client may try again, with another session."""
    async with serve(strict_identity=True) as rig:
        await start(rig, "mine", "own")
        sent = proven("mine", "q", "other")
        async with rig.client.post(rig.url + CHAT, json=HELLO, headers=sent) as answer:
            assert (answer.status, answer.headers["x-should-retry"]) == (401, "true")
        async with rig.client.delete(rig.url + PROGRAMS + "/q", headers=sent) as answer:
            assert answer.status == 401


async def test_a_token_ends_with_its_session(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_sessions, "START_WINDOW_S", 0.05)
    async with serve(strict_identity=True) as rig:
        token = await start(rig, "mine", "own")
        assert (await call(rig, session="mine", token=token))[0] == 200
        assert await delete(rig, SESSIONS + "/mine", session="mine", token=token) == 204
        status, _, answered = await call(rig, session="mine", token=token)
        # Its client may be about to start it again.
        assert (status, answered["x-should-retry"]) == (401, "true")
        assert await start(rig, "mine", "own") == token
        assert (await call(rig, session="mine", token=token))[0] == 200


async def test_another_machine_lists_only_its_own_programs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(strict_identity=True) as rig:
        own, foreign = await start(rig, "mine", "own"), await start(rig, "theirs", "other")
        await call(rig, session="mine", program="p", token=own)
        await call(rig, session="theirs", program="q", token=foreign)
        # On the gateway's machine one is an operator.
        assert len((await rig.get(PROGRAMS))[1]["programs"]) == 2
        monkeypatch.setattr(parameters, "is_loopback", lambda _host: False)
        for path in (PROGRAMS, PROGRAMS + "/p", PROGRAMS + "/p/why", PROGRAMS + "/p/timeline"):
            assert (await rig.get(path))[0] == 401
        assert (await rig.get("/autellix/v1/events"))[0] == 403
        async with rig.client.get(rig.url + PROGRAMS, headers=headers("theirs", token=foreign)) as answer:
            assert [row["program_id"] for row in (await answer.json())["programs"]] == ["q"]
        for program, expected in (("p", 404), ("q", 200), ("p/timeline", 404), ("q/timeline", 200)):
            async with rig.client.get(
                f"{rig.url}{PROGRAMS}/{program}", headers=headers("theirs", token=foreign)
            ) as answer:
                assert answer.status == expected


async def test_another_machine_learns_only_of_its_own_ended_programs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(strict_identity=True) as rig:
        own, foreign = await start(rig, "mine", "own"), await start(rig, "theirs", "other")
        await call(rig, session="mine", program="p", token=own)
        await call(rig, session="theirs", program="q", token=foreign)
        await delete(rig, SESSIONS + "/mine", session="mine", token=own)
        _, listed = await rig.get(HISTORY)
        assert [row["program_id"] for row in listed["programs"]] == ["p"]

        monkeypatch.setattr(parameters, "is_loopback", lambda _host: False)
        for path in (HISTORY, HISTORY + "/p", PROGRAMS + "/p/why", PROGRAMS + "/p/timeline"):
            assert (await rig.get(path))[0] == 401
            async with rig.client.get(rig.url + path, headers=headers("theirs", token=foreign)) as answer:
                shown = await answer.json()
                assert answer.status == 404 or shown["programs"] == []
