"""`autellix ps`, `why` and `top` against a gateway before a fake engine."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.gateway.snapshots import snapshot, standing
from tests.serving import listening
from tests.waiting import PATIENCE_S, until

from autellix_backend.assembly import create_app
from autellix_backend.cli.main import main, make_parser
from autellix_backend.cli.program_table import program_table
from autellix_backend.cli.remote import RemoteError, RemoteGateway
from autellix_backend.cli.terminal import Terminal
from autellix_backend.cli.why import explanation
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.settings import GatewaySettings, Settings

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def at_work(use: Callable[[str], None]) -> None:
    """Run blocking code while program `fast` runs and `slow` waits behind it."""

    async def run(folder: Path) -> None:
        engine = FakeEngine(
            FakeBehaviour(output_tokens=10_000, token_delay_s=0.01), report_address=f"ipc://{folder}/reports"
        )
        await engine.start()
        app = create_app(Settings(scheduler=SchedulerConfig(policy="plas")), engine)
        async with listening(app) as url, aiohttp.ClientSession() as client:

            async def call(program_id: str) -> None:
                headers = {"X-Autellix-Program-ID": program_id, "X-Autellix-Program-Name": "react"}
                async with client.post(url + CHAT, json=BODY, headers=headers) as response:
                    await response.read()

            tasks = [asyncio.create_task(call(program_id)) for program_id in ("fast", "slow")]
            await engine.wait_until(lambda: len(engine.calls) == 2)
            xargs = [request.json["vllm_xargs"] for request in engine.calls]
            keys = {item["autellix_program"]: item["autellix_call"] for item in xargs}
            told = snapshot(
                standing("fast", place=1, level=1, is_running=True, call_id=keys["fast"], kv_blocks=3),
                standing("slow", place=2, level=4, call_id=keys["slow"]),
                slots=1,
            )
            assert engine.report_server is not None
            engine.report_server.broadcast(told)
            [handle] = app.state.gateway.pool
            await until(lambda: handle.snapshots.merged is not None)
            await asyncio.to_thread(use, url)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await engine.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


def test_ps_lists_programs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def use(url: str) -> None:
        monkeypatch.setenv("AUTELLIX_BASE_URL", url + "/v1")
        assert main(["ps"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split()[:4] == ["PROGRAM", "NAME", "STATE", "LEVEL"]
        assert re.match(r" *fast +react +in the engine +1 ", lines[1])
        assert re.match(r" *slow +react +waiting for a slot +4 ", lines[2])
        assert main(["ps", "--state", "waiting_for_slot", "--json"]) == 0
        (shown,) = json.loads(capsys.readouterr().out)["programs"]
        assert shown["program_id"] == "slow"
        assert main(["ps", "--state", "between_calls"]) == 0
        assert capsys.readouterr().out == "No programs.\n"
        assert main(["ps", "--limit", "1"]) == 0
        assert "and more" in capsys.readouterr().out

    at_work(use)


def test_no_id_is_cut() -> None:
    """An id that is wider than the terminal goes over lines; `--wide` adds columns."""
    program = {
        "program_id": "q" * 120,
        "state": "ended",
        "state_text": "ended",
        "duration_s": 7.0,
        "threads": 2,
    }
    program |= {"name": "react", "service_s": 1.0, "wait_s": 2.0, "finished_calls": 4}
    program |= {"prompt_tokens": 10, "output_tokens": 20, "flags": [], "thread_names": [], "engines": []}

    def shown(width: int, *, is_wide: bool) -> str:
        return "\n".join(program_table(Terminal(width=width), [program], has_more=False, is_wide=is_wide))

    narrow, wide = shown(80, is_wide=False), shown(300, is_wide=True)
    assert narrow.count("q") == 120
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert "KV" not in narrow
    assert " ".join(wide.split()[:10]) == "PROGRAM NAME STATE SERVICE WAIT OPEN DONE AGE THREADS KV"
    assert "7.0 s" in wide
    program |= {"group": "g17", "over_median": 2.34}
    assert "g17 (2.3x)" in shown(300, is_wide=True)
    assert "10/20" in wide
    # Estimates look like none of the engine's own numbers.
    assert "~" not in narrow
    program |= {"estimated": True}
    assert {"~1.0", "~2.0"} <= set(shown(300, is_wide=True).split())
    assert "~: estimated in part" in shown(300, is_wide=True)


def test_ps_and_why_name_threads_and_implicit_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """Idle and ended programs too show the threads that they have had, and their last engine."""

    def use(url: str) -> None:
        named = {"X-Autellix-Program-ID": "script", "X-Autellix-Program-Name": "react.py"}
        named |= {"X-Autellix-Flags": "implicit"}
        call(url, **named, **{"X-Autellix-Thread-ID": "1", "X-Autellix-Thread-Name": "planner"})
        call(url, **named, **{"X-Autellix-Thread-ID": "2", "X-Autellix-Thread-Name": "critic"})
        for final in ("false", "true"):
            assert main(["ps", "--all", "--wide", "--url", url]) == 0
            text = capsys.readouterr().out
            (shown,) = (line for line in text.splitlines() if line.split()[0] == "script")
            assert "implicit: react.py" in shown
            assert "2 (planner, critic)" in shown
            assert shown.rstrip().endswith("fake-0")
            assert text.count('with autellix.program("name")') == 1
            assert main(["why", "script", "--url", url]) == 0
            text = " ".join(capsys.readouterr().out.split())
            assert "Program script (implicit: react.py) " in text
            assert "It is implicit: its process made these calls outside of any program. To open" in text
            if final == "false":
                call(url, **named, **{"X-Autellix-Thread-ID": "1", "X-Autellix-Final": "true"})
        assert main(["why", "fast", "--url", url]) == 0
        assert "implicit" not in capsys.readouterr().out

    at_work(use)


def call(url: str, **headers: str) -> None:
    body = json.dumps(BODY | {"max_tokens": 1}).encode()
    request = urllib.request.Request(
        url + CHAT, data=body, headers={"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(request) as response:
        response.read()


def test_the_call_of_a_named_thread_is_explained_by_its_name() -> None:
    call = {
        "call_id": "c",
        "thread_id": "3",
        "thread_name": "critic",
        "state": "waiting_for_slot",
        "state_text": "waiting for a slot",
        "text": "It waits.",
    }
    why = {**call, "program_id": "p", "name": None, "flags": ["implicit"]}
    text = explanation({**why, "calls": [call], "snapshot_age_s": None})
    assert text.startswith("Program p (implicit) is waiting for a slot.\n")
    assert "\nCall c of thread 3 (critic) is waiting for a slot.\n" in text


def test_an_explanation_has_no_codes_that_a_terminal_obeys() -> None:
    """It cites what a client has sent: names of threads and tools, and the place where a request differs."""
    hostile = "tools[0].\x1b]0;gone\x07\x9b2J"
    call = {"call_id": "c", "thread_id": "3", "thread_name": hostile, "state_text": "ended", "text": hostile}
    settled = {"call_id": "c", "program_id": "p", "engine": "e", "text": hostile}
    program = {**call, "program_id": "p", "name": hostile, "flags": [], "state": "ended", "calls": [call]}
    for why in (settled, {**program, "snapshot_age_s": None}):
        text = explanation(why)
        assert "tools[0].?]0;gone??2J" in text
        assert text.replace("\n", "").isprintable()


def test_ids_and_names_are_no_markup_of_the_terminal() -> None:
    """Else one program of one client would break the table for all."""
    hostile = "[/x][link=http://evil]:smile:[red]"
    program: dict[str, object] = {"program_id": hostile, "name": hostile, "state": "ended", "engines": []}
    program |= {
        "state_text": "ended",
        "duration_s": 7.0,
        "service_s": 1.0,
        "wait_s": 2.0,
        "finished_calls": 4,
        "threads": 9,
        "flags": [],
    }
    program |= {"prompt_tokens": 10, "output_tokens": 20, "thread_names": [hostile, "b", "c", "d"]}
    terminal = Terminal(width=400, is_terminal=True, has_color=True)
    text = "\n".join(program_table(terminal, [program], has_more=False, is_wide=True))
    assert text.count(hostile) == 3
    assert f"9 ({hostile}, b, c, ...)" in text
    assert "\x1b]8" not in text


def test_ps_and_why_know_programs_that_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    def use(url: str) -> None:
        call(url, **{"X-Autellix-Program-ID": "gone", "X-Autellix-Final": "true"})
        assert main(["ps", "--all", "--url", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines[1:]] == ["fast", "slow", "gone"]
        assert "ended" in lines[3]
        assert main(["ps", "--url", url]) == 0
        assert "gone" not in capsys.readouterr().out
        assert main(["why", "gone", "--url", url]) == 0
        assert capsys.readouterr().out.startswith("Program gone has ended.\n  1 call in ")

    at_work(use)


def test_why_explains_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    def use(url: str) -> None:
        assert main(["why", "slow", "--url", url]) == 0
        text = capsys.readouterr().out
        assert text.startswith("Program slow (react) is waiting for a slot.\n")
        words = " ".join(text.split())
        assert "in queue level 4 of 13 (1.0 s to 2.0 s of engine time)." in words
        assert "Ahead of it: fast (level 1," in words
        assert re.search(r"Based on an engine snapshot (\d+ ms|0\.\d+ s) old\.$", words)
        assert main(["why", "slow", "--url", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["calls"][0]["programs_ahead"][0]["program_id"] == "fast"

    at_work(use)


def test_why_takes_a_name_the_beginning_of_an_id_or_the_last_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def use(url: str) -> None:
        def said(*arguments: str) -> str:
            assert main(["why", *arguments, "--url", url]) == 0
            return capsys.readouterr().out

        def refused(wanted: str) -> str:
            assert main(["why", wanted, "--url", url]) == 1
            return capsys.readouterr().err

        assert said("sl").startswith("Program slow (react) is")
        call(url, **{"X-Autellix-Program-ID": "gone/0", "X-Autellix-Final": "true"})
        call(url, **{"X-Autellix-Program-ID": "gone/1", "X-Autellix-Program-Name": "one"})
        assert said("--last").startswith("Program gone/1 (one) is between calls.")
        assert said("one").startswith("Program gone/1 (one) is")
        assert said("gone/0").startswith("Program gone/0 has ended.")
        error = refused("react")
        assert "2 programs have the name 'react' or an id that begins so; expected the id of one:" in error
        assert error.splitlines()[1:] == [
            "  slow  react  waiting for a slot",
            "  fast  react  in the engine",
        ]
        error = refused("no/body")
        assert "there is no program 'no/body'; expected the id, the beginning of an id, or the name" in error
        assert error.splitlines()[1:3] == ["  gone/1  one  between calls", "  gone/0  -  ended"]

    at_work(use)


def test_why_alone_and_status_name_the_program_that_waits_longest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(url: str) -> None:
        monkeypatch.setenv("AUTELLIX_BASE_URL", url)
        assert main(["why"]) == 0
        assert capsys.readouterr().out.startswith("Program slow (react) is waiting for a slot.\n")
        assert main(["status"]) == 0
        line = capsys.readouterr().out
        assert line.startswith(
            "2 programs: 1 waiting for a slot, 1 in the engine. Waiting longest: slow (react), for "
        )
        assert main(["status", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["states"], answer["longest_wait"]["program_id"]) == (
            {"waiting_for_slot": 1, "in_engine": 1},
            "slow",
        )

    at_work(use)


def test_status_and_why_say_that_nothing_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting: dict[str, Any] = {"name": None, "flags": [], "state": "waiting_for_memory"}
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(RemoteGateway, "get", lambda self, path: {"programs": rows, "next": None})
    assert main(["status"]) == 0
    assert main(["why"]) == 1
    rows.append({"program_id": "p", "name": None, "flags": [], "state": "between_calls", "state_s": 90.0})
    assert main(["status"]) == 0
    said = capsys.readouterr()
    assert said.out == "No programs.\n1 program: 1 between calls. No program waits.\n"
    assert said.err == (
        "autellix: error: no program waits; expected PROGRAM, or --last for the one that began last\n"
    )
    rows.extend({**waiting, "program_id": f"p-{wait_s}", "state_s": wait_s} for wait_s in (3.0, 61.0, 5.0))
    assert main(["status"]) == 0
    assert "Waiting longest: p-61.0, for " in capsys.readouterr().out


def test_a_reader_that_goes_ends_a_command_quietly() -> None:
    """As `head` does, which has closed the pipe before the last line comes."""
    code = (
        "import sys; from autellix_backend.cli import main as cli;"
        "from autellix_backend.cli.remote import RemoteGateway;"
        "RemoteGateway.get = lambda self, path: {'programs': [], 'next': None};"
        "sys.stdin.read(); sys.exit(cli.main(['ps', '--json']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (141, "")


def test_why_explains_a_settled_call_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    def use(url: str) -> None:
        call(url, **{"X-Autellix-Program-ID": "gone", "X-Autellix-Call-ID": "call-9"})
        assert main(["why", "call-9", "--url", url]) == 0
        assert capsys.readouterr().out.startswith("Call call-9 of program gone has ended at engine fake-0.\n")

    at_work(use)


def test_why_counts_further_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [
        {"program_id": f"p-{age}", "name": None, "flags": [], "state_text": "in the engine", "age_s": age}
        for age in range(10)
    ]

    def get(self: RemoteGateway, path: str) -> dict[str, Any]:
        if "/why" in path:
            raise RemoteError("404", 404)
        return {"programs": rows if path.startswith("/programs") else [], "next": None}

    monkeypatch.setattr(RemoteGateway, "get", get)
    args = make_parser(["why"]).parse_args(["why", "p-"])
    with pytest.raises(RemoteError, match=r"10 programs .*\n  p-0 (?s:.*)\n  p-7 .*\n  \.\.\. and 2 more"):
        args.run(args)


def test_why_of_the_last_program_of_an_unused_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteGateway, "get", lambda *_: {"programs": [], "next": None})
    args = make_parser(["why"]).parse_args(["why", "--last"])
    with pytest.raises(RemoteError, match="the gateway has no programs yet"):
        args.run(args)


def test_why_passes_other_errors_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(self: RemoteGateway, path: str) -> dict[str, Any]:
        raise RemoteError("no key", 401)

    monkeypatch.setattr(RemoteGateway, "get", get)
    args = make_parser(["why"]).parse_args(["why", "p"])
    with pytest.raises(RemoteError, match="no key"):
        args.run(args)


def test_a_program_between_calls_has_none_to_explain() -> None:
    idle = {"program_id": "p", "name": None, "state": "between_calls", "state_text": "between calls (tool a)"}
    idle |= {"text": "No call has been open for 1.0 s."}

    assert (
        explanation({**idle, "flags": [], "calls": [], "snapshot_age_s": None})
        == "Program p is between calls (tool a).\n  No call has been open for 1.0 s."
    )


def test_top_prints_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def use(url: str) -> None:
        assert main(["top", "--once", "--url", url]) == 0
        text = capsys.readouterr().out
        assert re.search(r"fake-0\s+up\s+\d+\s+1\s+1\s+50 %\s+-\s+local", text)
        assert re.search(r"slow\s+react\s+waiting for a slot", text)
        assert main(["top", "--json", "--url", url]) == 0
        look = json.loads(capsys.readouterr().out)
        assert (len(look["engines"]), len(look["programs"])) == (1, 2)

    at_work(use)


def test_top_shows_a_tenant_its_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines are an admin's to see; any other refusal ends the command."""
    status = 403

    def get(_self: RemoteGateway, path: str) -> dict[str, object]:
        if path == "/engines":
            raise RemoteError("not yours", status)
        return {"programs": [], "has_more": False, "next": None}

    monkeypatch.setattr(RemoteGateway, "get", get)
    assert main(["top", "--once"]) == 0
    assert "engines are shown to admins" in capsys.readouterr().out

    status = 500
    assert main(["top", "--once"]) == 1
    assert "not yours" in capsys.readouterr().err


def test_top_follows_in_a_terminal_until_ctrl_c() -> None:
    def use(url: str) -> None:
        terminal, inside = pty.openpty()
        command = [sys.executable, "-m", "autellix_backend.cli.main", "top", "--url", url, "--period", "0.1"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
        process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
        )
        os.close(inside)
        seen = b""
        while b"slow" not in seen:
            seen += os.read(terminal, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while os.read(terminal, 65536):
                pass
        except OSError:
            pass  # the terminal's end of a closed pair
        assert process.wait(PATIENCE_S) == 0
        os.close(terminal)

    at_work(use)


def test_commands_for_a_gateway_run_where_nothing_is_installed() -> None:
    """`-S` leaves out all packages but ours, which are on the path as folders."""
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root / 'backend'}:{root / 'sdk'}", "PATH": os.environ["PATH"]}

    def said(*arguments: str) -> str:
        command = [sys.executable, "-S", "-m", "autellix_backend.cli.main", *arguments]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def use(url: str) -> None:
        assert re.search(r"slow +react +waiting for a slot", said("ps", "--wide", "--url", url))
        assert said("status", "--url", url).startswith("2 programs: ")
        assert said("why", "slow", "--url", url).startswith("Program slow (react) is waiting for a slot.")
        assert said("engines", "--url", url).splitlines()[1].split()[:2] == ["fake-0", "up"]
        assert "Ctrl-C quits" in said("top", "--once", "--url", url)

    at_work(use)


@pytest.mark.parametrize(
    "command", [["ps"], ["status"], ["why"], ["why", "p"], ["why", "--last"], ["top", "--once"]]
)
def test_a_gateway_without_a_console_is_named_as_the_reason(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        engine = FakeEngine()
        await engine.start()
        app = create_app(Settings(gateway=GatewaySettings(console=False)), engine)
        async with listening(app) as url:
            assert await asyncio.to_thread(main, [*command, "--url", url]) == 1
            assert await asyncio.to_thread(main, ["engines", "--url", url]) == 0
        await engine.stop()

    asyncio.run(run())
    error = capsys.readouterr().err
    assert error.rstrip().endswith("; expected a gateway with a console, served without --no-console")


@pytest.mark.parametrize("command", [["ps"], ["why", "p"], ["top", "--once"]])
def test_a_missing_gateway_gives_a_one_line_error(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main([*command, "--url", f"http://127.0.0.1:{port}"]) == 1
    error = capsys.readouterr().err
    assert f"autellix: error: no gateway answers at http://127.0.0.1:{port} ([Errno" in error
    assert "AUTELLIX_BASE_URL" in error


def test_an_address_of_another_kind_is_no_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--url", "nonsense"]) == 1
    assert "no gateway answers at nonsense (unknown url type" in capsys.readouterr().err
