"""Session tokens, with and without strict identity."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.gateway.conftest import CHAT, HELLO, Rig, Serve
from tests.waiting import PATIENCE_S, until

from autellix_backend.gateway.identity import session_tokens
from autellix_backend.settings import GatewaySettings, Settings, SettingsError, settings_to_mapping

SECRET = "sixteen characters or more"


def headers(session: str, program: str = "p", token: str | None = None) -> dict[str, str]:
    found = {"X-Autellix-Session-ID": session, "X-Autellix-Program-ID": program}
    return found if token is None else {**found, "X-Autellix-Session-Token": token}


async def start(rig: Rig, session: str) -> str:
    async with rig.client.post(rig.url + "/autellix/v1/sessions", json={"session_id": session}) as answer:
        token: str = (await answer.json())["token"]
        return token


async def call(rig: Rig, **named: Any) -> tuple[int, dict[str, Any], Any]:
    async with rig.client.post(rig.url + CHAT, json=HELLO, headers=headers(**named)) as answer:
        return answer.status, await answer.json(), answer.headers


def waits_for_start(rig: Rig, session: str) -> bool:
    """Return whether a call without a token is at the gateway, and waits for its session's start."""
    return session in rig.app.state.components.tokens._waiting


def run(serve: Serve, use: Any, **settings: Any) -> None:
    async def main() -> None:
        async with serve(**settings) as rig:
            await use(rig)

    asyncio.run(main())


def test_own_token_is_accepted(serve: Serve) -> None:
    async def use(rig: Rig) -> None:
        token = await start(rig, "mine")
        status, body, answered = await call(rig, session="mine", token=token)
        assert (status, body["autellix"]["program_id"]) == (200, "p")
        assert answered["X-Autellix-Identity-Source"] == "program-header"
        assert await start(rig, "mine") == token

    run(serve, use, strict_identity=True)


@pytest.mark.parametrize("token", ["", "v1.nonsense", "ü", None])
def test_strict_gateway_refuses_calls_without_a_token(serve: Serve, token: str | None) -> None:
    """A missing token is waited for, and may be retried; a wrong one is final."""

    async def use(rig: Rig) -> None:
        other = await start(rig, "other") if token == "" else token
        named = {"session": "mine"} if other is None else {"session": "mine", "token": other}
        status, body, answered = await call(rig, **named)
        error = body["error"]
        assert (status, error["code"]) == (401, "invalid_session_token")
        assert error["param"] == "X-Autellix-Session-Token"
        assert "gateway.strict_identity" in error["message"]
        assert ("x-should-retry" in answered) == (token is None)
        assert await rig.store.programs() == []

    run(serve, use, strict_identity=True)


def test_strict_gateway_refuses_calls_without_a_session(serve: Serve) -> None:
    async def use(rig: Rig) -> None:
        async with rig.client.post(rig.url + CHAT, json=HELLO) as answer:
            assert answer.status == 401
            assert "x-should-retry" not in answer.headers

    run(serve, use, strict_identity=True)


def test_first_call_of_a_session_needs_no_token_yet(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client starts its session beside its first call, which is admitted once that has happened."""
    monkeypatch.setattr(session_tokens, "START_WINDOW_S", PATIENCE_S)

    async def use(rig: Rig) -> None:
        first = asyncio.create_task(call(rig, session="mine"))
        await until(lambda: waits_for_start(rig, "mine"))
        assert not first.done()
        await start(rig, "mine")
        assert (await first)[0] == 200
        assert (await call(rig, session="mine"))[0] == 200

    run(serve, use, strict_identity=True)


def test_a_running_session_has_no_grace_for_missing_tokens(serve: Serve) -> None:
    """Who learns the id of a running session cannot call by it, not even after starting it again."""

    now_s = time.monotonic()

    async def use(rig: Rig) -> None:
        nonlocal now_s
        await start(rig, "mine")
        now_s += session_tokens.START_WINDOW_S + 0.1
        thief = asyncio.create_task(call(rig, session="mine"))
        await until(lambda: waits_for_start(rig, "mine"))
        await start(rig, "mine")
        assert (await thief)[0] == 401

    run(serve, use, strict_identity=True, clock=lambda: now_s)


def test_foreign_token_makes_a_call_anonymous(serve: Serve) -> None:
    """Without strict identity it is answered, and joins no other program."""

    async def use(rig: Rig) -> None:
        token = await start(rig, "thief")
        assert (await call(rig, session="mine", program="mine"))[0] == 200
        status, body, answered = await call(rig, session="mine", program="mine", token=token)
        assert status == 200
        assert body["autellix"]["program_id"] != "mine"
        assert answered["X-Autellix-Identity-Source"] == "foreign-token"
        view = await rig.store.program("mine")
        assert view is not None
        assert view.finished_calls == 1

    run(serve, use)


async def test_gateways_with_one_secret_agree(serve: Serve) -> None:
    async with serve(strict_identity=True, token_secret=SECRET) as one:
        token = await start(one, "mine")
    async with serve(strict_identity=True, token_secret=SECRET) as other:
        assert (await call(other, session="mine", token=token))[0] == 200
    async with serve(strict_identity=True) as stranger:
        assert (await call(stranger, session="mine", token=token))[0] == 401


def test_secret_is_checked_and_not_shown() -> None:
    with pytest.raises(SettingsError, match=r"gateway.token_secret: cannot be used; expected 16 characters"):
        GatewaySettings(token_secret="short")
    shown = settings_to_mapping(Settings(gateway=GatewaySettings(token_secret=SECRET)))
    assert shown["gateway"]["token_secret"] == "(hidden)"
