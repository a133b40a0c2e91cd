"""Keys, restarts and late gateways: the next call is annotated again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.waiting import wait_until

import autellix
from autellix._sessions import upkeep
from autellix._sessions.keeper import keeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

    from autellix._sessions.session import Registration

MESSAGES: Any = [{"role": "user", "content": "x"}]


def ask(backend: Recording, key: str = "secret", **options: Any) -> None:
    with openai.OpenAI(base_url=backend.url, api_key=key, **{"max_retries": 0, **options}) as client:
        client.chat.completions.create(model="m", messages=MESSAGES)


def running() -> list[Registration]:
    """The sessions that run at the backend."""
    return [entry for entry in keeper.process_session.registrations.values() if entry.is_running]


@pytest.fixture
def configured(sdk: None, make_backend: Callable[..., Recording]) -> Recording:
    backend = make_backend()
    autellix.configure(backend.url)
    return backend


def test_each_key_has_a_session_of_its_own(configured: Recording) -> None:
    """A backend may bind a session to the key that has started it."""
    clients = [openai.OpenAI(base_url=configured.url, api_key=key, max_retries=0) for key in "abab"]
    for client in clients:
        client.chat.completions.create(model="m", messages=MESSAGES)
    wait_until(lambda: len(running()) == 2)
    sessions = [call["x-autellix-session-id"] for call in configured.calls]
    assert sessions[0] == sessions[2] != sessions[1] == sessions[3]
    assert sorted(map(str, configured.credentials)) == ["Bearer a", "Bearer b"]
    assert len({call["x-autellix-program-id"] for call in configured.calls}) == 1
    for client in clients:
        client.close()


def test_program_ends_for_each_key_that_it_used(configured: Recording) -> None:
    with autellix.program("a", id="p"):
        ask(configured, "a")
        ask(configured, "b")
    configured.wait_for("DELETE", "/programs/p", count=2)


def test_session_that_the_user_named_keeps_its_id_for_every_key(configured: Recording) -> None:
    with autellix.session(id="conversation"):
        ask(configured, "a")
        ask(configured, "b")
    assert [call["x-autellix-session-id"] for call in configured.calls] == ["conversation"] * 2


def test_right_key_after_a_wrong_one(configured: Recording) -> None:
    """A key that the backend does not take is not used for the session, and the next key is."""
    configured.statuses = [401]
    with openai.OpenAI(base_url=configured.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="m", messages=MESSAGES)
        client.api_key = "right"
        client.chat.completions.create(model="m", messages=MESSAGES)
    wait_until(lambda: len(running()) == 1)
    assert configured.credentials == ["Bearer right"]
    first, second = (call["x-autellix-session-id"] for call in configured.calls)
    assert first == second == running()[0].session_id


def test_the_retry_of_a_401_has_another_session(configured: Recording) -> None:
    """The session may be another key's, where identity is strict."""
    configured.statuses = [401]
    configured.response_headers = {"x-should-retry": "true", "retry-after-ms": "1"}
    ask(configured, max_retries=1)
    first, second = configured.calls
    assert first["x-autellix-call-id"] == second["x-autellix-call-id"]
    assert first["x-autellix-session-id"] != second["x-autellix-session-id"]


@pytest.mark.parametrize("status", [404, 502, 401, 200])
def test_session_that_the_backend_does_not_start_is_started_later(
    configured: Recording, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """An ingress answers for a gateway that starts."""
    monkeypatch.setattr(upkeep, "MISSED_HEARTBEAT_S", 0.05)
    configured.control_statuses = [status] * 2
    ask(configured)
    wait_until(lambda: len(running()) == 1)
    assert len(configured.wait_for("POST", "/sessions")) == 3


def test_session_goes_on_at_a_backend_that_has_forgotten_it(
    sdk: None, make_backend: Callable[..., Recording]
) -> None:
    """A heartbeat starts it again: they are the same request."""
    backend = make_backend(heartbeat_s=0.05)
    autellix.configure(backend.url)
    ask(backend)
    starts = backend.wait_for("POST", "/sessions", count=3)
    assert len({body for _, _, body in starts}) == 1


def test_dead_backend_is_told_nothing(sdk: None) -> None:
    """No call has been answered, so there is nothing that it must learn."""
    autellix.configure("http://127.0.0.1:9/v1")
    with (
        openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="key", max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
        autellix.program("first"),
    ):
        client.chat.completions.create(model="m", messages=MESSAGES)
    assert keeper._upkeeps == {}
