"""The session's life: started by the first call, kept alive, ended, and never in the user's way."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.waiting import PATIENCE_S

import autellix
from autellix._programs.running import running_thread
from autellix._sessions import backends as origins
from autellix._sessions import keeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

    from autellix._sessions.session import Registration

MESSAGES: Any = [{"role": "user", "content": "x"}]


def ask(backend: Recording, count: int = 1, key: str = "secret") -> None:
    with openai.OpenAI(base_url=backend.url, api_key=key, max_retries=0) as client:
        for _ in range(count):
            client.chat.completions.create(model="m", messages=MESSAGES)


def registration_at(backend: Recording) -> Registration:
    (found,) = (
        registration
        for account, registration in keeper.keeper.process_session.registrations.items()
        if account.backend.origin[2] == backend.port
    )
    return found


@pytest.fixture
def backend(sdk: None, make_backend: Callable[..., Recording]) -> Recording:
    """A backend that the client has been told of."""
    backend = make_backend()
    autellix.configure(backend.url)
    return backend


def test_first_answer_starts_the_session_once(backend: Recording) -> None:
    ask(backend, count=3)
    (start,) = backend.wait_for("POST", "sessions")
    assert json.loads(start[2]) == {
        "session_id": backend.calls[0]["x-autellix-session-id"],
        "client": "autellix-python",
        "proof": origins.backends.known()[0].proof,
    }
    # A secret, which testing helpers leave out of what they record.
    assert "x-autellix-session-proof" not in backend.calls[0]
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


def test_foreign_backend_never_gets_headers(sdk: None, make_backend: Callable[..., Recording]) -> None:
    foreign = make_backend(is_autellix=False)
    ask(foreign, count=2)
    for call in foreign.calls:
        assert [name for name in call if name.startswith("x-autellix")] == []
    assert foreign.control == []


def test_rotating_keys_of_one_client_are_one_session(backend: Recording) -> None:
    """The session goes on with the latest key, and no other is kept."""
    keys = iter(range(50))
    with (
        openai.OpenAI(base_url=backend.url, api_key=lambda: f"key-{next(keys)}", max_retries=0) as client,
        autellix.program(id="p"),
    ):
        for _ in range(50):
            client.chat.completions.create(model="m", messages=MESSAGES)
    backend.wait_for("DELETE", "/programs/p")
    assert len({call["x-autellix-session-id"] for call in backend.calls}) == 1
    assert len({call["authorization"] for call in backend.calls}) == 50
    assert registration_at(backend).account.credentials == (b"Bearer key-49", None, None)
    autellix.uninstrument()
    backend.wait_for("DELETE", "/sessions/")
    assert len([entry for entry in backend.control if entry[0] == "DELETE"]) == 2


def test_key_of_a_single_request_is_another_account(backend: Recording) -> None:
    with openai.OpenAI(base_url=backend.url, api_key="own", max_retries=0) as client:
        for extra in ({}, {"Authorization": "Bearer guest"}, {}):
            client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=extra)
    sessions = [call["x-autellix-session-id"] for call in backend.calls]
    assert sessions[0] == sessions[2] != sessions[1]


def test_records_of_many_keys_are_bounded(sdk: None) -> None:
    """Each key once, as a server has it that passes on its users' keys by an HTTP client of its own."""
    autellix.configure("http://gateway:8000/v1")
    with autellix.program("server"):
        for number in range(2000):
            assert autellix.headers("http://gateway:8000/v1/chat/completions", api_key=f"key-{number}")
        program = running_thread().program
    (backend,) = origins.backends.known()
    gc.collect()
    for records in (program.registrations, keeper.keeper.process_session.registrations):
        assert len(records) <= 256
    assert len(backend._accounts) <= 512
    assert not [account for account in backend._accounts.values() if account.credentials]


def test_session_scope_groups_programs_and_ends(sdk: None, backend: Recording) -> None:
    ask(backend)
    with autellix.session(id="conversation") as identity:
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


def test_the_session_of_a_step_has_an_id_of_its_own(sdk: None, backend: Recording) -> None:
    """The steps of two trainers have the same numbers; ending one ends nothing of the other."""
    found = []
    for _ in range(2):
        with autellix.session(step=7) as identity, autellix.program("rollout"):
            ask(backend)
        found.append(identity.session_id)
        backend.wait_for("DELETE", f"/sessions/{identity.session_id}")
    assert [call["x-autellix-session-id"] for call in backend.calls] == found
    assert found[0] != found[1]
    assert all(session.startswith("step-7-") for session in found)


def test_a_step_is_a_whole_number_and_no_id() -> None:
    for value in (-1, 1.5, True, "3", float("nan")):
        with pytest.raises(ValueError, match=r"step is .*; expected a whole number"):
            autellix.session(step=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="an id and a step"):
        autellix.session(id="mine", step=3)
    with pytest.raises(ValueError, match="at most"):
        autellix.session(step=10**300)


def test_session_that_goes_on_is_not_ended(sdk: None, backend: Recording) -> None:
    for _ in range(2):
        with autellix.session(id="conversation", continues=True):
            ask(backend)
    with autellix.program("last"):
        ask(backend)
    backend.wait_for("DELETE", "/programs/")
    assert not [entry for entry in backend.control if entry[:2] == ("DELETE", "/sessions/conversation")]
    backend.wait_for("POST", "/sessions")


def test_exit_does_not_end_a_session_that_others_may_continue(
    run_script: Callable[..., str], backend: Recording
) -> None:
    """It may be open in another process; its heartbeats keep it."""
    script = IN_TIME + "    with autellix.session(id='conversation', continues=True):\n        ask()"
    run_script(script, backend.url)
    run_script(IN_TIME + "    with autellix.session(id='mine'):\n        ask()", backend.url)
    ends = [path for method, path, _ in backend.control if method == "DELETE"]
    assert ends == ["/autellix/v1/sessions/mine"]


def test_configure_ends_the_session_at_backends_left(
    sdk: None, make_backend: Callable[..., Recording]
) -> None:
    old = make_backend()
    autellix.configure(old.url)
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


SCRIPT = """
    import autellix, openai, sys, time
    autellix.configure(sys.argv[1])
    client = openai.OpenAI(base_url=sys.argv[1], api_key="key", max_retries=0)
    ask = lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
"""

# A busy machine may need longer than the second in which a process sends its ends at the exit.
IN_TIME = f"""{SCRIPT}
    import autellix._sessions.keeper, autellix._sessions.upkeep
    autellix._sessions.keeper.EXIT_LIMIT_S = autellix._sessions.upkeep.PATIENCE_S = {PATIENCE_S}
"""


def test_exit_by_exception_ends_the_session(run_script: Callable[..., str], backend: Recording) -> None:
    with pytest.raises(AssertionError, match="ValueError: users"):
        run_script(IN_TIME + "    ask()\n    raise ValueError('users')", backend.url)
    session_id = backend.calls[0]["x-autellix-session-id"]
    assert ("DELETE", f"/autellix/v1/sessions/{session_id}", "") in backend.control


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
        IN_TIME
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
        before = len([entry for entry in backend.control if entry[0] == "POST"])
        backend.wait_for("POST", "/sessions", count=before + 3)
        process.communicate()
    assert process.returncode == 0
