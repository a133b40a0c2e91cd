"""Our own client at a gateway: its sessions start, live and end, with strict identity and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.client import switched_on
from tests.fakes.engine import FakeEngine
from tests.serving import serving_thread
from tests.waiting import wait_until

import autellix
from autellix_backend.assembly import create_app
from autellix_backend.gateway.tenancy.tenants import key_line, new_key
from autellix_backend.settings import GatewaySettings, Settings

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, list[str]]]:
    """A gateway's address, its parts, and the keys that it takes."""
    is_strict, has_keys = request.param
    keys = [new_key(), new_key()]
    tenants = tmp_path / "tenants.toml"
    hashes = ", ".join(f'"{key_line(key)}"' for key in keys)
    tenants.write_text(f'[[tenant]]\nname = "team"\nkeys = [{hashes}]\n')
    gateway = GatewaySettings(strict_identity=is_strict, tenants_file=tenants if has_keys else None)
    engine = FakeEngine()
    served = create_app(Settings(gateway=gateway), engine)
    with serving_thread(served, engine) as url, switched_on():
        autellix.configure(url)
        yield f"{url}/v1", served.state.gateway, keys


def sessions(parts: Any) -> list[str]:
    found: list[str] = list(parts.store._heartbeats)
    return found


BOTH = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("app", BOTH, indirect=True)
def test_a_session_from_the_first_call_to_the_end(app: tuple[str, Any, list[str]]) -> None:
    url, parts, keys = app
    with openai.OpenAI(base_url=url, api_key=keys[0], max_retries=0) as client:
        with autellix.program("agent", id="p"):
            for _ in range(3):
                answer = client.chat.completions.with_raw_response.create(
                    model="fake", messages=MESSAGES, max_tokens=2
                )
                assert answer.headers["x-autellix-identity-source"] == "program-header"
        wait_until(lambda: len(sessions(parts)) == 1)
        wait_until(lambda: not parts.store._entries)
    autellix.uninstrument()
    wait_until(lambda: sessions(parts) == [])


@pytest.mark.parametrize("app", BOTH, indirect=True)
def test_a_client_whose_key_changes(app: tuple[str, Any, list[str]]) -> None:
    """Its call goes through, in the same session unless the gateway binds that to a key."""
    url, parts, keys = app
    sources = []
    with openai.OpenAI(base_url=url, api_key=keys[0], max_retries=2) as client:
        for number, key in enumerate(keys):
            client.api_key = key
            with autellix.program("agent"):
                answer = client.chat.completions.with_raw_response.create(
                    model="fake", messages=MESSAGES, max_tokens=2
                )
                sources.append(answer.headers["x-autellix-identity-source"])
            if not number:
                wait_until(lambda: len(sessions(parts)) == 1)
    assert sources == ["program-header"] * 2
    is_bound = parts.tokens.is_strict and parts.tenants.has_keys
    wait_until(lambda: len(sessions(parts)) == 1 + is_bound)
