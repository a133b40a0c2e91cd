"""Keys, restarts and late gateways: the next call is annotated again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.waiting import PATIENCE_S, wait_until

import autellix
from autellix._sessions import keeper, program_ends
from autellix._sessions.exchange import exchange_all
from autellix._sessions.session import REGISTERED, UNREACHABLE, Registration

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

MESSAGES: Any = [{"role": "user", "content": "x"}]


def ask(backend: Recording, key: str = "secret", **options: Any) -> None:
    with openai.OpenAI(base_url=backend.url, api_key=key, **{"max_retries": 0, **options}) as client:
        client.chat.completions.create(model="m", messages=MESSAGES)


def registrations() -> list[Registration]:
    return list(keeper.keeper.process_session.registrations.values())


def settled() -> bool:
    return all(entry.state in (REGISTERED, UNREACHABLE) for entry in registrations())


def registered() -> bool:
    return all(entry.state == REGISTERED for entry in registrations())


def last_token(backend: Recording) -> str | None:
    return backend.calls[-1].get("x-autellix-session-token")


@pytest.fixture
def configured(sdk: None, make_backend: Callable[..., Recording]) -> Recording:
    backend = make_backend(token="signed")
    autellix.configure(backend.url)
    return backend


def test_each_key_has_a_session_of_its_own(configured: Recording) -> None:
    """A backend binds a session to the key that has started it, and refuses it to another key."""
    for key in ("a", "b", "a", "b"):
        ask(configured, key)
        wait_until(registered)
    sessions = [call["x-autellix-session-id"] for call in configured.calls]
    assert sessions[0] == sessions[2] != sessions[1] == sessions[3]
    assert configured.credentials == ["Bearer a", "Bearer b"]
    assert len({call["x-autellix-program-id"] for call in configured.calls}) == 1


def test_program_ends_for_each_key_that_it_used(configured: Recording) -> None:
    with autellix.program("a", id="p"):
        ask(configured, "a")
        ask(configured, "b")
    configured.wait_for("DELETE", "/programs/p", count=2)


def test_session_that_the_user_named_keeps_its_id_for_every_key(configured: Recording) -> None:
    with autellix.session("conversation"):
        ask(configured, "a")
        ask(configured, "b")
    assert [call["x-autellix-session-id"] for call in configured.calls] == ["conversation"] * 2


def test_right_key_after_a_wrong_one(configured: Recording) -> None:
    configured.statuses, configured.control_statuses = [401], [401]
    with pytest.raises(openai.AuthenticationError):
        ask(configured, "wrong")
    wait_until(settled)
    ask(configured, "right")
    wait_until(lambda: REGISTERED in [entry.state for entry in registrations()])
    ask(configured, "right")
    assert last_token(configured) == "signed"


@pytest.mark.parametrize("status", [404, 502, 401, 200])
def test_configured_backend_is_not_given_up_for_an_answer(configured: Recording, status: int) -> None:
    """An ingress answers for a gateway that starts; once that answers a call, the session follows."""
    configured.control_statuses = [status]
    ask(configured)
    wait_until(settled)
    ask(configured)
    wait_until(registered)
    ask(configured)
    assert last_token(configured) == "signed"
    assert all("x-autellix-call-id" in call for call in configured.calls)


def test_the_retry_of_a_401_has_the_new_token(configured: Recording) -> None:
    ask(configured)
    wait_until(registered)
    configured.token = "other"
    configured.statuses = [401]
    configured.response_headers = {"x-should-retry": "true", "retry-after-ms": "500"}
    ask(configured, max_retries=1)
    assert len({call["x-autellix-call-id"] for call in configured.calls}) == 2
    assert last_token(configured) == "other"


class Held:
    """The control thread, held while steps gather, and what it sends then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.sent: list[list[str]] = []

        def record(account: Any, requests: Any, timeout_s: float = 2.0) -> Any:
            self.sent.append([f"{method} {path}" for method, path, *_ in requests])
            return exchange_all(account, requests, timeout_s)

        for module in (keeper, program_ends):
            monkeypatch.setattr(module, "exchange_all", record)
        keeper.keeper._control.post(self._hold)

    def _hold(self) -> None:
        assert self.release.wait(PATIENCE_S)


def test_ends_are_sent_together(configured: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(configured)
    wait_until(registered)
    held = Held(monkeypatch)
    with openai.OpenAI(base_url=configured.url, api_key="secret", max_retries=0) as client:
        for number in range(100):
            with autellix.program(id=f"p{number}"):
                client.chat.completions.create(model="m", messages=MESSAGES)
    held.release.set()
    configured.wait_for("DELETE", "/programs/", count=100)
    assert [len(batch) for batch in held.sent] == [100]


def test_heartbeats_go_before_ends(configured: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(configured)
    wait_until(registered)
    held = Held(monkeypatch)
    with autellix.program(id="p"):
        ask(configured)
    (registration,) = registrations()
    registration.heartbeat_due_s = keeper.keeper._due_s = 0.0
    held.release.set()
    configured.wait_for("DELETE", "/programs/p")
    assert [batch[0].rsplit("/", 1)[1] for batch in held.sent] == ["heartbeat", "p"]


def test_heartbeats_of_one_backend_are_sent_together(
    configured: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        with autellix.session(f"s{number}", ends=False):
            ask(configured)
    sessions = keeper.keeper._sessions()
    wait_until(lambda: all(entry.state == REGISTERED for s in sessions for entry in s.registrations.values()))
    held = Held(monkeypatch)
    for session in sessions:
        for registration in session.registrations.values():
            registration.heartbeat_due_s = keeper.keeper._due_s = 0.0
    held.release.set()
    configured.wait_for("POST", "/heartbeat", count=20)
    assert [len(batch) for batch in held.sent] == [20]


def test_ends_at_a_dead_backend_do_not_gather(sdk: None) -> None:
    autellix.configure("http://127.0.0.1:9/v1")
    with (
        openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="key", max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
        autellix.program("first"),
    ):
        client.chat.completions.create(model="m", messages=MESSAGES)
    wait_until(settled)
    with (
        openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="key", max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
        autellix.program("second"),
    ):
        client.chat.completions.create(model="m", messages=MESSAGES)
    wait_until(lambda: not keeper.keeper.program_ends)
