"""A hostile host that marks its answers as a backend's: what it can learn, hold, slow or break."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.sdk.in_process import HTTPX, Network
from tests.waiting import PATIENCE_S, wait_until

import autellix
from autellix._receipts import keep, keep_comment, kept
from autellix._sessions import backends as origins
from autellix._sessions import exchange, keeper
from autellix._sessions.session import REGISTERED, UNREACHABLE, session_proof

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

MESSAGES: Any = [{"role": "user", "content": "x"}]
MARK = {"X-Autellix-Version": "1"}


def names(headers: Any) -> list[str]:
    return [name for name in headers if name.startswith("x-autellix")]


class Internet(Network):
    """Every host in the process, by a function of the request."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        super().__init__("http://unused.example", answer=answer)

    @property
    def hosts(self) -> list[tuple[str, list[str]]]:
        """Each request's host, and the headers of ours that it has seen."""
        return [(request.url.host, names(request.headers)) for request in self.requests]

    def ask(self, url: str, count: int = 1) -> None:
        client = self.client_at(url)
        for _ in range(count):
            client.chat.completions.create(model="m", messages=MESSAGES)


def answered(_request: Any = None, **headers: str) -> Any:
    return HTTPX.Response(200, json={"choices": []}, headers={**MARK, **headers})


@pytest.fixture
def no_sessions(sdk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts are in the process: no session reaches them."""
    monkeypatch.setattr("autellix._sessions.keeper.exchange", lambda *_, **__: None)


@pytest.mark.parametrize("target", ["https://provider.example/v1/x", "http://other.example/v1/x"])
def test_redirect_to_another_host_carries_no_identity(no_sessions: None, target: str) -> None:
    def answer(request: Any) -> Any:
        if request.url.host == "gateway.example":
            return HTTPX.Response(307, headers={**MARK, "Location": target})
        return HTTPX.Response(200, json={"choices": []})

    internet = Internet(answer)
    autellix.configure("http://gateway.example/v1")
    internet.ask("http://gateway.example/v1")
    (first, ours), (second, theirs) = internet.hosts
    assert (first, bool(ours)) == ("gateway.example", True)
    assert (second, theirs) == (target.split("/")[2], [])


def test_redirect_to_the_same_host_keeps_the_identity(no_sessions: None) -> None:
    def answer(request: Any) -> Any:
        if request.url.scheme == "http":
            return HTTPX.Response(307, headers={"Location": str(request.url.copy_with(scheme="https"))})
        return answered()

    internet = Internet(answer)
    autellix.configure("http://gateway.example/v1")
    internet.ask("http://gateway.example/v1")
    (_, first), (_, second) = internet.hosts
    assert first == second != []


def test_redirect_discovers_nothing(no_sessions: None) -> None:
    """The host that redirects would choose the path at which the other one is asked for a session."""

    def answer(request: Any) -> Any:
        if request.url.host == "hostile.example":
            return HTTPX.Response(307, headers={"Location": "http://gateway.example/trap/v1/x"})
        return answered()

    internet = Internet(answer)
    internet.ask("http://hostile.example/v1", count=2)
    assert all(not headers for _, headers in internet.hosts)
    assert origins.backends.admitted() == []


def test_hosts_with_the_mark_are_bounded(
    no_sessions: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(origins.backends, "_has_warned", False)
    internet = Internet(answered)
    for number in range(origins.MAX_DISCOVERED + 5):
        internet.ask(f"http://h{number}.example/v1", count=2)
    annotated = {host for host, headers in internet.hosts if headers}
    assert len(annotated) == origins.MAX_DISCOVERED
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "AUTELLIX_BASE_URL" in record.getMessage()
    # A backend that the user names is admitted whatever was there before.
    autellix.configure("http://gateway.example/v1")
    internet.ask("http://gateway.example/v1")
    assert internet.hosts[-1][1] != []


def test_seen_origins_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = origins.BackendRegistry()
    assert registry.discover("http", "gateway.example", 80, "/v1/x")
    for number in range(2 * origins.MAX_SEEN):
        registry.find("https", f"h{number}.example", None, "/v1/x")
    assert len(registry._seen) <= origins.MAX_SEEN
    assert registry.find("http", "gateway.example", 80, "/v1/x") is not None


def test_mark_that_comes_and_goes_changes_no_call(no_sessions: None) -> None:
    count = 0

    def answer(request: Any) -> Any:
        nonlocal count
        count += 1
        return HTTPX.Response(200, json={"choices": []}, headers=MARK if count % 2 else {})

    internet = Internet(answer)
    internet.ask("http://hostile.example/v1", count=6)
    assert [bool(headers) for _, headers in internet.hosts] == [False, True, True, True, True, True]


def test_unnamed_host_gets_a_proof_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another backend's proof, it could ask that one for the session's token."""
    monkeypatch.setenv("AUTELLIX_SESSION_PROOF", "secret")

    def proof(host: str, *, is_configured: bool = False) -> str:
        return session_proof(origins.Backend(("http", host, 80), "", is_configured=is_configured))

    assert proof("gateway", is_configured=True) == "secret"
    assert len({proof("a.example"), proof("b.example"), "secret"}) == 3
    assert proof("127.0.0.1") == proof("localhost")


@pytest.mark.parametrize(
    "token", ["a\r\nAuthorization: Bearer stolen", "a\x00b", "t" * 60_000, "\x7f", "a\u2028b", " a"]
)
def test_token_of_a_hostile_host_breaks_no_call(
    sdk: None, make_backend: Callable[..., Recording], token: str
) -> None:
    hostile = make_backend(token=token)
    with openai.OpenAI(base_url=hostile.url, api_key="key", max_retries=0) as client:
        for _ in range(2):
            client.chat.completions.create(model="m", messages=MESSAGES)
            wait_until(lambda: all_states() == [REGISTERED])
    assert not any("x-autellix-session-token" in call for call in hostile.calls)


def all_states() -> list[str]:
    return [entry.state for entry in keeper.keeper.process_session.registrations.values()]


def test_silent_host_gets_less_and_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that nobody named keep the others' heartbeats waiting for half a second at most."""

    def connect(*_: object) -> Any:
        raise TimeoutError

    monkeypatch.setattr(exchange, "_connect", connect)
    for is_configured, expected in ((False, [1.0, 0.5, 0.5]), (True, [2.0] * 3)):
        given = []
        backend = origins.Backend(("http", "hostile.example", 80), "", is_configured=is_configured)
        for _ in expected:
            assert exchange.exchange(backend.account(origins.NO_KEY), "GET", "/", None) is None
            given.append(backend.patience_s)
        assert given == expected


def test_host_that_answers_gets_all_the_time_again(backend: Recording) -> None:
    host = origins.Backend(("http", "127.0.0.1", backend.port), "", is_configured=False)
    host.lose_patience()
    assert exchange.exchange(host.account(origins.NO_KEY), "GET", "/v1/models", None) is not None
    exchange.close_connections()
    assert host.patience_s == origins.PATIENCE_S


def test_heartbeat_without_an_answer_is_not_repeated_soon(
    sdk: None, make_backend: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend(heartbeat_s=0.05)
    autellix.configure(backend.url)
    was_sent = threading.Event()

    def swallow(_account: object, requests: Any, *_: object) -> list[None]:
        was_sent.set()
        return [None] * len(requests)

    monkeypatch.setattr(keeper, "exchange_all", swallow)
    with openai.OpenAI(base_url=backend.url, api_key="key", max_retries=0) as client:
        client.chat.completions.create(model="m", messages=MESSAGES)
    wait_until(lambda: all_states() == [REGISTERED])
    (registration,) = keeper.keeper.process_session.registrations.values()
    assert was_sent.wait(PATIENCE_S)
    soon_s = time.monotonic() + keeper.MISSED_HEARTBEAT_S / 2
    wait_until(lambda: registration.heartbeat_due_s > soon_s)


class FakeConnection:
    def __init__(self) -> None:
        self.is_closed = False
        self.is_stale = False

    def exchange(self, requests: Any, answers: list[Any], _deadline_s: float) -> bool:
        answers.extend([(200, b"{}")] * len(requests))
        return True

    def close(self) -> None:
        self.is_closed = True


def test_kept_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeConnection] = []

    def connect(*_: object) -> FakeConnection:
        made.append(FakeConnection())
        return made[-1]

    monkeypatch.setattr(exchange, "_connect", connect)
    for number in range(exchange.MAX_KEPT + 3):
        backend = origins.Backend(("http", f"h{number}", 80), "", is_configured=False)
        exchange.exchange(backend.account(origins.NO_KEY), "GET", "/", None)
    assert [connection.is_closed for connection in made] == [True] * 3 + [False] * exchange.MAX_KEPT
    exchange.close_connections()
    assert all(connection.is_closed for connection in made)


@pytest.mark.parametrize(
    "fields",
    [
        {"call_id": "hostile-1", "text": "x" * 10_000},
        {"call_id": "hostile-1", "nested": {"a": ["b"] * 1000}},
        {"call_id": "hostile-1", **{f"field-{number}": 0 for number in range(100)}},
        {"call_id": "hostile-1", "huge": 10**1000},
        {"call_id": "h" * 10_000},
        {"call_id": ["hostile-1"]},
    ],
)
def test_receipt_that_is_large_is_not_kept(fields: dict[str, Any]) -> None:
    keep(fields)
    keep_comment(": autellix " + json.dumps(fields))
    assert kept("hostile-1") is None
    assert kept("h" * 10_000) is None


def test_comment_of_a_hostile_stream_is_ignored() -> None:
    for line in (": autellix {", ": autellix {" * 1000, ': autellix {"call_id": 1e999}', ": autellix [1]"):
        keep_comment(line)
    keep_comment(": autellix " + '{"a":' * 5000)


def test_refusals_of_a_hostile_host_start_one_registration_for_a_call(
    sdk: None, make_backend: Callable[..., Recording]
) -> None:
    hostile = make_backend(response_headers={"X-Autellix-Identity-Source": "foreign-token"})
    with openai.OpenAI(base_url=hostile.url, api_key="key", max_retries=0) as client:
        for _ in range(5):
            client.chat.completions.create(model="m", messages=MESSAGES)
            wait_until(lambda: all_states()[0] in (REGISTERED, UNREACHABLE))
    assert len([entry for entry in hostile.control if entry[1].endswith("/sessions")]) <= 6
