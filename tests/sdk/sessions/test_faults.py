"""Faults of a gateway from its user's side: calls end as without us, and the next one is annotated."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.sdk.sessions.relay import HttpProxy, Relay
from tests.waiting import wait_until

import autellix
from autellix._sessions import keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sdk.conftest import Recording

MESSAGES: Any = [{"role": "user", "content": "x"}]
GARBAGE = {
    "no HTTP": b"\x00\xff" * 500,
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{[}",
    "other JSON": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
}


@pytest.fixture
def gateway(sdk: None, make_backend: Callable[..., Recording]) -> Recording:
    return make_backend()


@pytest.fixture
def front(gateway: Recording) -> Iterator[Relay]:
    front = Relay(gateway.port)
    yield front
    front.close()


def ask(url: str) -> Any:
    with openai.OpenAI(base_url=url, api_key="key", max_retries=0) as client:
        return client.chat.completions.create(model="m", messages=MESSAGES)


def outcome(url: str) -> str:
    """What the user gets: an answer's type, or an error's."""
    try:
        return type(ask(url)).__name__
    except Exception as error:  # noqa: BLE001 - whatever the library raises
        return type(error).__name__


def runs() -> bool:
    """Whether the session runs at the gateway."""
    return any(entry.is_running for entry in keeper.keeper.process_session.registrations.values())


def check_recovery(gateway: Recording, url: str) -> None:
    """One call reaches the gateway, and the next is annotated; the session follows."""
    count = len(gateway.calls)
    ask(url)
    ask(url)
    assert len(gateway.calls) == count + 2
    assert gateway.calls[-1]["x-autellix-program-id"] == autellix.current().program_id
    wait_until(runs)


@pytest.mark.parametrize(
    ("garbage", "is_configured"), [*((name, True) for name in GARBAGE), ("no HTTP", False)]
)
def test_garbage(gateway: Recording, front: Relay, garbage: str, is_configured: bool) -> None:
    front.fault = GARBAGE[garbage]
    autellix.uninstrument()
    expected = outcome(front.url)
    autellix.instrument()
    autellix.configure(front.url if is_configured else None)
    assert [outcome(front.url) for _ in range(2)] == [expected] * 2
    assert not runs()
    front.fault = None
    check_recovery(gateway, front.url)


@pytest.mark.parametrize("is_configured", [True, False])
def test_dead_and_late(gateway: Recording, is_configured: bool) -> None:
    """Its port is closed, and the calls fail as without us, until it starts."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    autellix.configure(url if is_configured else None)
    assert [outcome(url) for _ in range(2)] == ["APIConnectionError"] * 2
    assert not runs()
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError:
        pytest.skip("another process has taken the port meanwhile")
    front = Relay(gateway.port, listener)
    try:
        check_recovery(gateway, url)
    finally:
        front.close()


@pytest.mark.parametrize("is_configured", [True, False])
def test_dies_and_comes_back(gateway: Recording, front: Relay, is_configured: bool) -> None:
    autellix.configure(front.url if is_configured else None)
    check_recovery(gateway, front.url)
    front.fault = b""
    assert [outcome(front.url) for _ in range(2)] == ["APIConnectionError"] * 2
    front.fault = None
    check_recovery(gateway, front.url)


def test_slow(gateway: Recording) -> None:
    """Its sessions API hangs, and its calls do not: they are annotated, and never wait."""
    gateway.control_delay_s = 3.0
    autellix.configure(gateway.url)
    for _ in range(3):
        ask(gateway.url)
    assert all("x-autellix-call-id" in call for call in gateway.calls)
    assert not runs()
    gateway.control_delay_s = 0.0


def test_foreign_server_becomes_a_gateway(gateway: Recording) -> None:
    gateway.is_autellix = False
    for _ in range(2):
        ask(gateway.url)
    assert not any(name.startswith("x-autellix") for call in gateway.calls for name in call)
    gateway.is_autellix = True
    check_recovery(gateway, gateway.url)


def test_behind_a_proxy(gateway: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and session take the same way."""
    with HttpProxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.delenv("NO_PROXY", raising=False)
        autellix.configure(gateway.url)
        check_recovery(gateway, gateway.url)
    assert proxy.passed.count("v1/chat/completions") == 2
    assert "autellix/v1/sessions" in proxy.passed
