"""What users see of the client besides scopes: its state, and headers for other clients."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import pydoc
import runpy
import socket
import struct
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.waiting import wait_until

import autellix
from autellix._programs.registry import programs
from autellix.testing import RecordingBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording


IS_INSTALLED = any(importlib.metadata.distributions(name="autellix"))
needs_package = pytest.mark.skipif(not IS_INSTALLED, reason="the client is imported from its sources here")


def ask(backend: Recording) -> None:
    with openai.OpenAI(base_url=backend.url, api_key="key", max_retries=0) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


@needs_package
def test_version_is_that_of_the_package() -> None:
    assert autellix.__version__ == importlib.metadata.version("autellix")
    with pytest.raises(AttributeError, match="nothing"):
        autellix.nothing  # noqa: B018 - it is looked up


def test_status_tells_backends_and_sessions(sdk: None, backend: Recording) -> None:
    autellix.configure(backend.url)
    assert autellix.status().backends == {}
    ask(backend)
    url = backend.url.removesuffix("/v1")

    def sessions() -> Any:
        return autellix.status().backends[url].sessions

    wait_until(lambda: sessions()[0].is_running)
    status = autellix.status()
    assert status.is_on
    assert status.has_reached
    assert status.configured == [url]
    assert status.backends[url].has_answered
    (session,) = sessions()
    assert (session.id, session.is_running, session.failures) == (autellix.current().session_id, True, 0)
    assert {"openai._base_client", "threading"} <= set(status.libraries)
    assert status.missing == []
    with pytest.warns(DeprecationWarning, match="use the attribute `backends`"):
        assert status["backends"] is status.backends


def test_help_explains_itself() -> None:
    """The names of the types are public, and all that a user may use is there, with an example."""
    text = pydoc.plain(pydoc.render_doc(autellix))
    assert "import autellix" in text
    for name in autellix.__all__:
        assert getattr(autellix, name).__doc__
        assert name in text
    for type_ in (autellix.Identity, autellix.Receipt, autellix.Status):
        assert type_.__module__ == "autellix"
        assert type_.__name__ in dir(autellix)
    assert inspect.signature(autellix.program).parameters["priority"].annotation.startswith("Literal[")


def test_old_spellings_work_with_a_warning(sdk: None) -> None:
    """For one version."""
    old: Any = autellix
    with (
        pytest.warns(DeprecationWarning, match="with an id by position"),
        old.program("chat", "c-1") as found,
    ):
        assert found.program_id == "c-1"
    with pytest.warns(DeprecationWarning, match="with an id by position"), old.session("s-1") as found:
        assert found.session_id == "s-1"
    with pytest.warns(DeprecationWarning, match="use `continues=True`") as seen:
        scope = old.program(id="c-2", ends=False)
    assert seen[0].filename == __file__
    with scope:
        pass
    assert "c-2" in programs._suspended
    with pytest.warns(DeprecationWarning, match="end_program"):
        old.end_program("c-2")
    assert "c-2" not in programs._suspended


def test_a_turn_that_does_not_continue_is_the_last(sdk: None) -> None:
    for _ in range(2):
        with autellix.program("chat", id="c-3", continues=True):
            pass
        assert "c-3" in programs._suspended
    with autellix.program(id="c-3"):
        pass
    assert "c-3" not in programs._suspended


def test_headers_annotate_any_client(sdk: None, backend: Recording) -> None:
    autellix.configure(backend.url)
    url = backend.url + "/chat/completions"
    with autellix.program("agent"):
        for _ in range(2):
            request = urllib.request.Request(
                url, b'{"messages": []}', autellix.headers(url, api_key="key"), method="POST"
            )
            with urllib.request.urlopen(request) as response:
                assert response.status == 200
        ask(backend)
    first, second, third = backend.calls
    assert first["x-autellix-parent-ids"] == "-"
    assert second["x-autellix-parent-ids"] == first["x-autellix-call-id"]
    assert third["x-autellix-parent-ids"] == second["x-autellix-call-id"]
    assert {call["x-autellix-program-name"] for call in backend.calls} == {"agent"}
    backend.wait_for("DELETE", "/programs/")
    assert backend.credentials == ["Bearer key"]


def test_headers_are_for_backends_only(sdk: None) -> None:
    assert autellix.headers("https://api.openai.com/v1/chat/completions") == {}
    assert autellix.headers("http://[") == {}
    with pytest.raises(TypeError, match="as text"):
        autellix.headers(7)  # type: ignore[arg-type]


@needs_package
def test_module_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["autellix", "--version"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module("autellix", run_name="__main__")
    assert exit_.value.code == 0
    assert autellix.__version__ in capsys.readouterr().out


def test_command_line_needs_no_other_package(run_script: Callable[..., str]) -> None:
    """`pip install autellix` brings the client alone: the command's help works."""
    script = """
    import sys
    sys.path[:] = [path for path in sys.path if "site-packages" not in path]
    sys.path += sys.argv[1:]
    from autellix_backend.cli.main import main
    try:
        main(["--help"])
    except SystemExit as exit_:
        print(exit_.code)
    """
    root = Path(__file__).parents[2]
    lines = run_script(script, str(root / "sdk"), str(root / "backend")).splitlines()
    assert lines[-1] == "0"


async def test_headers_with_aiohttp(sdk: None, backend: Recording) -> None:
    aiohttp: Any = pytest.importorskip("aiohttp")
    autellix.configure(backend.url)
    url = backend.url + "/chat/completions"

    async with autellix.program("agent"), aiohttp.ClientSession() as session:

        async def ask(text: str) -> None:
            body = {"messages": [{"role": "user", "content": text}]}
            async with session.post(url, json=body, headers=autellix.headers(url)) as response:
                assert response.status == 200

        await asyncio.gather(ask("left"), ask("right"))
        await ask("joined")
    assert backend.dag() == {"left": (), "right": (), "joined": ("left", "right")}


def test_a_client_that_leaves_is_no_error_of_the_recording_backend(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = set(threading.enumerate())

    def handlers() -> set[threading.Thread]:
        return {thread for thread in set(threading.enumerate()) - before if "request" in thread.name}

    with RecordingBackend() as backend:
        client = socket.create_connection(("127.0.0.1", backend.port))
        client.sendall(b"GET /v1/models HTTP/1.1\r\n")
        wait_until(handlers)
        # It resets the connection.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        wait_until(lambda: not handlers())
    assert capsys.readouterr().err == ""
