"""What a backend is told, and that no backend keeps another waiting."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.waiting import PATIENCE_S, wait_until

import autellix
from autellix._sessions import upkeep
from autellix._sessions.keeper import keeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

    from autellix._sessions.session import Registration

MESSAGES: Any = [{"role": "user", "content": "x"}]


def ask(backend: Recording) -> None:
    with openai.OpenAI(base_url=backend.url, api_key="key", max_retries=0) as client:
        client.chat.completions.create(model="m", messages=MESSAGES)


def running(backend: Recording) -> Registration:
    """Return the registration of the process's session at a backend, once it runs there."""

    def found() -> list[Registration]:
        entries = list(keeper.process_session.registrations.values())
        return [e for e in entries if e.account.backend.origin[2] == backend.port and e.is_running]

    wait_until(lambda: bool(found()))
    return found()[0]


@pytest.mark.parametrize(
    ("heartbeat_s", "is_configured", "least_s", "most_s"),
    [
        (1e400, False, 3599, 3600),
        (10**400, True, 3599, 3600),
        (1e-9, False, 0.9, 1.0),
        (1e-9, True, 0.0, 0.06),
    ],
)
def test_absurd_heartbeats_are_bounded(
    sdk: None,
    make_backend: Callable[..., Recording],
    heartbeat_s: float,
    is_configured: bool,
    least_s: float,
    most_s: float,
) -> None:
    backend = make_backend(heartbeat_s=heartbeat_s)
    autellix.configure(backend.url if is_configured else None)
    ask(backend)
    ask(backend)
    registration = running(backend)
    # While a heartbeat is under way, the next is due as if this one were missed.
    wait_until(lambda: least_s - 0.5 <= registration.due_s - time.monotonic() <= most_s)


def test_silent_backend_keeps_no_other_waiting(sdk: None, make_backend: Callable[..., Recording]) -> None:
    """A hostile one that nobody has named, say."""
    silent, other = make_backend(control_delay_s=2 * PATIENCE_S), make_backend(heartbeat_s=0.05)
    autellix.configure([silent.url, other.url])
    ask(silent)
    silent.wait_for("POST", "/sessions")
    ask(other)
    other.wait_for("POST", "/sessions", count=5)
    assert len(silent.control) == 1
    silent.control_delay_s = 0.0


def test_heartbeats_go_before_ends(sdk: None, make_backend: Callable[..., Recording]) -> None:
    backend = make_backend()
    autellix.configure(backend.url)
    ask(backend)
    registration = running(backend)
    told = keeper._upkeeps[registration.account.backend]
    release = threading.Event()

    def hold() -> None:
        assert release.wait(PATIENCE_S)

    told._thread.post(hold)
    with autellix.program(id="p"):
        ask(backend)
    registration.due_s = told._due_s = 0.0
    release.set()
    backend.wait_for("DELETE", "/programs/p")
    assert [entry[0] for entry in backend.control] == ["POST", "POST", "DELETE"]


def test_session_without_calls_for_long_is_forgotten(
    sdk: None, make_backend: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its key; the backend ends it then, and the next call starts it again."""
    monkeypatch.setattr(upkeep, "IDLE_SESSION_S", 0.2)
    backend = make_backend(heartbeat_s=0.05)
    autellix.configure(backend.url)
    ask(backend)
    wait_until(lambda: not keeper.process_session.registrations)
    count = len(backend.control)
    ask(backend)
    backend.wait_for("POST", "/sessions", count=count + 1)
    assert len({call["x-autellix-session-id"] for call in backend.calls}) == 1


def test_one_connection_is_kept(sdk: None, make_backend: Callable[..., Recording]) -> None:
    """Whichever clients have made the calls, and none after the last session."""
    backend = make_backend()
    autellix.configure(backend.url)
    for key in ("a", "b"):
        with openai.OpenAI(base_url=backend.url, api_key=key, max_retries=0) as client:
            client.chat.completions.create(model="m", messages=MESSAGES)
    entries = list(keeper.process_session.registrations.values())
    wait_until(lambda: all(entry.is_running for entry in entries))
    routes: list[Any] = [entry.account.route for entry in entries]
    assert [route._pool is None for route in routes] == [True, False]
    autellix.uninstrument()
    backend.wait_for("DELETE", "/sessions/", count=2)
    wait_until(lambda: all(route._pool is None for route in routes))
