"""`autellix engines` against a running gateway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.serving import listening
from tests.waiting import until

from autellix_backend.assembly import create_app
from autellix_backend.cli.engines import KINDS
from autellix_backend.cli.main import main
from autellix_backend.settings import ENGINE_KINDS, Settings


def at_work(use: Callable[[str, str], None]) -> None:
    """Run blocking code beside a gateway with two engines; it gets the addresses of it and of a third."""

    async def run() -> None:
        engines = [FakeEngine(name=name) for name in ("one", "two", "three")]
        for engine in engines:
            await engine.start()
        async with listening(create_app(Settings(), *engines[:2])) as url:
            await asyncio.to_thread(use, url, engines[2].base_url)
        for engine in engines:
            await engine.stop()

    asyncio.run(run())


def test_engines_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    def use(url: str, _third: str) -> None:
        assert main(["engines", "--url", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        table, said = lines[:3], lines[3:]
        assert [line.split()[:2] for line in table] == [["ENGINE", "STATE"], ["one", "up"], ["two", "up"]]
        assert [line.partition(": ")[0] for line in said] == ["one", "two"]
        assert all("a server without the Autellix scheduler" in line for line in said)
        assert main(["engines", "list", "--url", url, "--json"]) == 0
        assert [engine["name"] for engine in json.loads(capsys.readouterr().out)["engines"]] == ["one", "two"]

    at_work(use)


def test_engines_are_added_drained_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    def use(url: str, third: str) -> None:
        def told(*arguments: str) -> str:
            assert main(["engines", *arguments, "--url", url]) == 0
            return capsys.readouterr().out.strip()

        added = told("add", third, "--name", "late", "--kind", "vllm", "--report-port", "1").splitlines()
        assert added[0] == f"late ({third}): up"
        assert added[1].startswith("no report port at tcp://127.0.0.1:1: no bound in flight: the engine's")
        assert told("drain", "one").endswith(": draining")
        assert re.fullmatch(
            r"one .*: draining, its last call ended after 0\.\d s", told("drain", "one", "--wait")
        )
        assert told("undrain", "one").endswith(": up")
        assert told("drain", "one").endswith(": draining")
        assert told("remove", "two").endswith(": left")
        assert [line.split()[:2] for line in told("list").splitlines()[1:3]] == [
            ["one", "draining"],
            ["late", "up"],
        ]
        assert told("remove", "one", "--no-wait").endswith(": leaving")

    at_work(use)


def test_a_drain_waits_for_the_last_call(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        gate = asyncio.Event()
        engines = [FakeEngine(FakeBehaviour(gate=gate), name="busy"), FakeEngine(name="other")]
        for engine in engines:
            await engine.start()
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        async with listening(create_app(Settings(), *engines)) as url, aiohttp.ClientSession() as client:
            call = asyncio.create_task(client.post(url + "/v1/chat/completions", json=body))
            await engines[0].wait_until(lambda: bool(engines[0].calls))
            drain = asyncio.create_task(
                asyncio.to_thread(main, ["engines", "drain", "busy", "--wait", "--url", url])
            )
            await until(lambda: "busy: its open calls: 1" in shown(capsys))
            assert not drain.done()
            gate.set()
            assert await drain == 0
            assert (await call).status == 200
        for engine in engines:
            await engine.stop()

    read: list[str] = []

    def shown(capsys: pytest.CaptureFixture[str]) -> str:
        read.append("".join(capsys.readouterr()))
        return "".join(read)

    asyncio.run(run())
    assert "busy (" in shown(capsys)


def test_impossible_changes_are_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def use(url: str, _third: str) -> None:
        assert main(["engines", "drain", "nobody", "--url", url]) == 1
        assert "404: there is no engine 'nobody'" in capsys.readouterr().err
        with pytest.raises(SystemExit) as ended:
            main(["engines", "drain", "--url", url])
        assert ended.value.code == 2
        assert "expected the engine's address or name" in capsys.readouterr().err

    at_work(use)


def test_the_option_has_the_kinds_of_the_settings() -> None:
    assert KINDS == ENGINE_KINDS
