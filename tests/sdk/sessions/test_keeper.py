"""The session's life: started by the first call, kept alive, ended, and never in the user's way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.waiting import PATIENCE_S, wait_until

import autellix
from autellix._instrument import calls
from autellix._sessions import backends as origins
from autellix._sessions import exchange, keeper
from autellix._sessions.session import REGISTERED, Registration

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

MESSAGES: Any = [{"role": "user", "content": "x"}]


def ask(backend: Recording, count: int = 1, key: str = "secret") -> None:
    with openai.OpenAI(base_url=backend.url, api_key=key, max_retries=0) as client:
        for _ in range(count):
            client.chat.completions.create(model="m", messages=MESSAGES)


def record_of(backend: Recording) -> origins.Backend:
    found = origins.backends._seen["http", "127.0.0.1", backend.port, None]
    assert found is not None
    return found


def registration_at(backend: Recording) -> Registration:
    (found,) = (
        registration
        for account, registration in keeper.keeper.process_session.registrations.items()
        if account.backend is record_of(backend)
    )
    return found


def test_first_call_starts_the_session_once(sdk: None, backend: Recording) -> None:
    autellix.configure(backend.url)
    ask(backend, count=3)
    (start,) = backend.wait_for("POST", "sessions")
    assert json.loads(start[2]) == {
        "session_id": backend.calls[0]["x-autellix-session-id"],
        "client": "autellix-python",
        "proof": os.environ["AUTELLIX_SESSION_PROOF"],
    }
    assert backend.credentials == ["Bearer secret"]


def test_no_call_no_session(sdk: None, backend: Recording) -> None:
    with autellix.program("a"):
        pass
    assert backend.control == []
    assert all(thread.name != "autellix-control" for thread in threading.enumerate())


def test_leaving_a_program_ends_it_at_the_backend(sdk: None, backend: Recording) -> None:
    with autellix.program("a", id="a/b"):
        ask(backend)
    assert backend.wait_for("DELETE")[0][1] == "/autellix/v1/programs/a%2Fb"


def test_shared_program_ends_with_its_last_scope(sdk: None, backend: Recording) -> None:
    with autellix.program(id="p"):
        with autellix.program(id="p"):
            ask(backend)
        with autellix.program(id="q"):
            ask(backend)
        assert backend.wait_for("DELETE")[0][1].endswith("/q")
    assert [entry[1][-1] for entry in backend.wait_for("DELETE", count=2)] == ["q", "p"]


def test_heartbeats_and_return_after_a_restart(sdk: None, make_backend: Callable[..., Recording]) -> None:
    """A backend that has forgotten the session answers a heartbeat by 404 and gets the session again."""
    backend = make_backend(heartbeat_s=0.05)
    autellix.configure(backend.url)
    ask(backend)
    backend.wait_for("POST", "/heartbeat", count=2)
    backend.control_statuses.append(404)
    wait_until(lambda: sum(entry[1].endswith("/sessions") for entry in backend.control) >= 2)
    wait_until(lambda: registration_at(backend).state == REGISTERED)


def test_foreign_backend_never_gets_headers(sdk: None, make_backend: Callable[..., Recording]) -> None:
    """A near host is asked what it is; its first call waits for the answer."""
    foreign = make_backend(is_autellix=False)
    ask(foreign, count=2)
    assert record_of(foreign).state == origins.FOREIGN
    for call in foreign.calls:
        assert [name for name in call if name.startswith("x-autellix")] == []
    assert len(foreign.control) == 1


def test_a_slow_probe_delays_one_call_briefly(
    sdk: None, make_backend: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[object] = []
    wait = calls.wait_for_probe

    def count_wait(host: origins.Backend) -> None:
        waits.append(host)
        wait(host)

    monkeypatch.setattr(calls, "PROBE_WAIT_S", 0.1)
    monkeypatch.setattr(calls, "wait_for_probe", count_wait)
    slow = make_backend(control_delay_s=1.5)
    ask(slow, count=4)
    assert waits == [record_of(slow)]
    # The first answer has the mark of a backend, long before the probe's.
    assert ["x-autellix-call-id" in call for call in slow.calls] == [False, True, True, True]
    wait_until(lambda: record_of(slow).state == origins.KNOWN)
    ask(slow)
    assert "x-autellix-call-id" in slow.calls[-1]


@pytest.mark.parametrize(
    ("heartbeat_s", "taken_s"),
    [(1e400, 3600), (10**400, 3600), (1e-9, keeper.MIN_DISCOVERED_HEARTBEAT_S)],
)
def test_absurd_heartbeat_of_a_host_that_nobody_named_is_bounded(
    sdk: None, make_backend: Callable[..., Recording], heartbeat_s: float, taken_s: float
) -> None:
    backend = make_backend(heartbeat_s=heartbeat_s)
    ask(backend)
    wait_until(lambda: registration_at(backend).state == REGISTERED)
    assert registration_at(backend).heartbeat_s == taken_s


def test_session_scope_groups_programs_and_ends(sdk: None, backend: Recording) -> None:
    ask(backend)
    with autellix.session("conversation") as identity:
        assert identity.session_id == "conversation"
        ask(backend)
        with autellix.program("a"):
            ask(backend)
    ask(backend)
    sessions = [call["x-autellix-session-id"] for call in backend.calls]
    assert sessions[1:3] == ["conversation", "conversation"]
    assert sessions[0] == sessions[3] != "conversation"
    assert backend.calls[1]["x-autellix-program-id"] == backend.calls[0]["x-autellix-program-id"]
    backend.wait_for("DELETE", "/sessions/conversation")


def test_session_that_goes_on_is_not_ended(sdk: None, backend: Recording) -> None:
    for _ in range(2):
        with autellix.session("conversation", ends=False):
            ask(backend)
    with autellix.program("last"):
        ask(backend)
    backend.wait_for("DELETE", "/programs/")
    assert not [entry for entry in backend.control if entry[:2] == ("DELETE", "/sessions/conversation")]
    assert len([entry for entry in backend.control if '"conversation"' in entry[2]]) == 1


def test_configure_ends_the_session_at_backends_left(
    sdk: None, make_backend: Callable[..., Recording]
) -> None:
    old = make_backend()
    ask(old)
    old.wait_for("POST", "sessions")
    autellix.configure(base_url="http://127.0.0.1:9")
    old.wait_for("DELETE", "sessions")


def test_uninstrument_ends_the_session(sdk: None, backend: Recording) -> None:
    ask(backend)
    autellix.uninstrument()
    backend.wait_for("DELETE", "sessions")
    ask(backend)
    assert "x-autellix-call-id" not in backend.calls[1]
    autellix.instrument()
    ask(backend)
    backend.wait_for("POST", "sessions", count=2)
    assert "x-autellix-call-id" in backend.calls[2]


def test_https_is_spoken_to_https_backends(sdk: None) -> None:
    """Its handshake is the first that a server sees."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        account = origins.Backend(("https", *server.getsockname()), "", is_configured=True).account(
            origins.NO_KEY
        )
        thread = threading.Thread(target=exchange.exchange, args=(account, "GET", "/", None, 0.5))
        thread.start()
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b"\x16"
        thread.join()


SCRIPT = """
    import autellix, openai, sys, time
    autellix.configure(sys.argv[1])
    client = openai.OpenAI(base_url=sys.argv[1], api_key="key", max_retries=0)
    ask = lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
"""


def test_exit_by_exception_ends_the_session(run_script: Callable[..., str], backend: Recording) -> None:
    with pytest.raises(AssertionError, match="ValueError: users"):
        run_script(SCRIPT + "    ask()\n    raise ValueError('users')", backend.url)
    session_id = backend.calls[0]["x-autellix-session-id"]
    assert ("DELETE", f"/autellix/v1/sessions/{session_id}", "") in backend.control


@pytest.mark.parametrize("death", ["SIGKILL", "SIGTERM"])
def test_killed_process_is_noticed(backend: Recording, death: str) -> None:
    """It ends nothing itself, but the request that it has left open is closed with it."""
    script = textwrap.dedent(SCRIPT) + "ask()\nprint('asked', flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script, backend.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    (watch,) = backend.wait_for("GET", "/watch")
    process.send_signal(getattr(signal, death))
    process.stdout.close()
    process.wait(PATIENCE_S)
    assert backend.wait_for("GONE", "/watch") == [("GONE", watch[1], "")]
    assert not [entry for entry in backend.control if entry[0] == "DELETE"]


def test_dead_backend_costs_a_bounded_exit(run_script: Callable[..., str]) -> None:
    """A backend that accepts and never answers: openai's own error, and a second at most at the exit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        # Registered first, it runs last; taking down the modules after that is not the client's time.
        script = (
            "    import atexit, time\n    atexit.register(lambda: print(time.time()))\n"
            f"{SCRIPT}"
            "    try:\n        client.with_options(timeout=0.2).models.with_raw_response\n"
            "        client.with_options(timeout=0.2).chat.completions.create(model='m', messages=[])\n"
            "    except openai.APITimeoutError:\n        print(time.time())"
        )
        failed_at_s, ended_at_s = map(float, run_script(script, f"http://127.0.0.1:{port}/v1").split())
        assert ended_at_s - failed_at_s < 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_has_a_session_and_program_of_its_own(
    run_script: Callable[..., str], backend: Recording
) -> None:
    script = (
        SCRIPT
        + """
    import os
    # The two processes must not share a connection.
    client = client.with_options(default_headers={"Connection": "close"})
    with autellix.program("named"):
        ask()
        child = os.fork()
        ask()
    ask()
    if child:
        os.waitpid(child, 0)
        ask()
    else:
        print(autellix.current().is_implicit)
    """
    )
    assert run_script(script, backend.url) == "True\n"
    by_session: dict[str, list[dict[str, str]]] = {}
    for call in backend.calls:
        by_session.setdefault(call["x-autellix-session-id"], []).append(call)
    child, parent = sorted(by_session.values(), key=len)
    assert (len(child), len(parent)) == (2, 4)
    assert child[0]["x-autellix-program-name"] == "named"
    assert child[0]["x-autellix-parent-ids"] == "-"
    mine, theirs = ({call["x-autellix-program-id"] for call in calls} for calls in (child, parent))
    assert not mine & theirs
    ends = [path for method, path, _ in backend.control if method == "DELETE" and "/sessions/" in path]
    assert {path.rsplit("/", 1)[1] for path in ends} == set(by_session)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_heartbeats_go_on_after_a_fork(make_backend: Callable[..., Recording]) -> None:
    backend = make_backend(heartbeat_s=0.05)
    script = (
        SCRIPT
        + """
    import os
    ask()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    print("forked", flush=True)
    sys.stdin.read()
    """
    )
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), backend.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        before = len([entry for entry in backend.control if entry[1].endswith("/heartbeat")])
        backend.wait_for("POST", "/heartbeat", count=before + 3)
        process.communicate()
    assert process.returncode == 0
