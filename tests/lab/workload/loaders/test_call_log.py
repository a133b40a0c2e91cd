"""A gateway's call log as program traces."""

from __future__ import annotations

import asyncio
import datetime
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.cli.main import main
from autellix_backend.settings import ObserveSettings, Settings
from autellix_lab.workload.loaders import load
from autellix_lab.workload.trace import CallTrace, ProgramTrace, TraceError

ORIGIN_S = 1_700_000_000.0


class Log:
    """Writes a call log; times are seconds after an origin."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def call(self, start_s: float, finish_s: float, prompt: int | None = 10, **fields: Any) -> None:
        time = datetime.datetime.fromtimestamp(ORIGIN_S + finish_s, datetime.UTC)
        line = {
            "time": time.isoformat(timespec="microseconds"),
            "event": "call",
            "call_id": f"made-{start_s}",
            "program_id": "p",
            "program_name": None,
            "thread_id": "0",
            "parents": None,
            "tenant": "",
            "outcome": "ok",
            "duration_s": round(finish_s - start_s, 6),
            "prompt_tokens": prompt,
            "cached_tokens": 0,
            "output_tokens": None if prompt is None else 5,
            "is_final": False,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line | fields) + "\n")

    def programs(self) -> list[ProgramTrace]:
        return load(self._path)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "calls.jsonl")


def test_a_chain_has_its_timings_and_tokens(log: Log) -> None:
    log.call(0.0, 0.5, program_id="q")
    log.call(3.0, 4.0, call_id="a", parents=[], program_name="react")
    log.call(6.5, 7.0, 20, call_id="b", parents=["a"], cached_tokens=12, output_tokens=6)
    _, program = log.programs()
    assert (program.source, program.program_id, program.arrival_s) == ("react", "p", 3.0)
    first, second = program.calls
    assert first == CallTrace(
        id=0,
        parents=(),
        thread="0",
        prefill_tokens=10,
        decode_tokens=5,
        gap_before_s=0.0,
        kind="root",
        start_s=0.0,
        latency_s=1.0,
    )
    assert second == CallTrace(
        id=1,
        parents=(0,),
        thread="0",
        prefill_tokens=20,
        decode_tokens=6,
        shared_prefix_tokens=12,
        prefix_from=0,
        gap_before_s=2.5,
        start_s=3.5,
        latency_s=0.5,
    )


def test_named_parents_beat_the_thread_and_the_last_one_sets_the_gap(log: Log) -> None:
    log.call(0, 1, call_id="root")
    log.call(1, 3, thread_id="right", call_id="right", parents=["root"])
    log.call(1, 4, thread_id="left", call_id="left", parents=["root"])
    log.call(4.5, 5, call_id="join", parents=["left", "right", "elsewhere"])
    (program,) = log.programs()
    assert [call.parents for call in program.calls] == [(), (0,), (0,), (1, 2)]
    assert [call.gap_before_s for call in program.calls] == [0, 0, 0, 0.5]


def test_without_parents_a_call_follows_the_last_ended_one_of_its_thread(log: Log) -> None:
    log.call(0, 1)
    log.call(1, 3)
    log.call(1.5, 4)
    log.call(5, 6, thread_id="1")
    (program,) = log.programs()
    # The two in the middle overlap, so neither waited for the other.
    assert [call.parents for call in program.calls] == [(), (0,), (0,), ()]
    assert program.calls[3].gap_before_s == 5


def test_cached_tokens_are_bounded_by_what_the_earlier_call_held(log: Log) -> None:
    log.call(0, 1, 10, cached_tokens=8)
    log.call(1, 2, 40, cached_tokens=32)
    log.call(2, 3, 40)
    (program,) = log.programs()
    shared = [(call.shared_prefix_tokens, call.prefix_from) for call in program.calls]
    assert shared == [(0, None), (15, 0), (0, None)]


def test_a_call_without_work_is_left_out_and_its_children_go_to_its_parents(log: Log) -> None:
    log.call(0, 1, call_id="a")
    log.call(1, 2, None, call_id="b", outcome="unavailable")
    log.call(3, 4, call_id="c", parents=["b"])
    log.call(3, 4, None, program_id="q", outcome="rejected")
    (program,) = log.programs()
    assert [call.parents for call in program.calls] == [(), (0,)]
    assert program.calls[1].gap_before_s == 2


def test_a_program_with_unknown_tokens_is_left_out(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.call(0, 1, None)
    log.call(2, 3)
    log.call(2, 3, program_id="q")
    assert [program.program_id for program in log.programs()] == ["q"]
    assert "1 programs are left out" in caplog.text


def test_tenants_and_final_calls_tell_programs_of_one_id_apart(log: Log) -> None:
    log.call(0, 1, is_final=True)
    log.call(0.5, 2)
    log.call(3, 4)
    log.call(3, 4, tenant="red")
    found = [(program.program_id, len(program.calls)) for program in log.programs()]
    assert found == [("p", 2), ("p", 1), ("red/p", 1)]


def test_a_broken_line_is_named(log: Log) -> None:
    log.call(0, 1, time="soon")
    with pytest.raises(TraceError, match=r"line 1: time is 'soon'; expected a time of ISO 8601"):
        log.programs()


def test_what_a_gateway_logs_is_converted_and_simulated(
    tmp_path: Path, local_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With branches, tools and a stream, in which only counts and times are written."""
    calls, trace = tmp_path / "calls.jsonl", tmp_path / "trace.jsonl"

    async def serve() -> None:
        engine = FakeEngine(FakeBehaviour(), report_address=local_address)
        await engine.start()
        app = create_app(Settings(observe=ObserveSettings(call_log=calls)), engine)
        async with listening(app) as url, aiohttp.ClientSession() as client:

            async def chat(call: str, parents: str, **body: Any) -> None:
                headers = {
                    "X-Autellix-Program-ID": "p",
                    "X-Autellix-Call-ID": call,
                    "X-Autellix-Parent-IDs": parents,
                    "X-Autellix-Thread-ID": call,
                }
                hello = {"model": "m", "messages": [{"role": "user", "content": "secret"}], **body}
                async with client.post(url + "/v1/chat/completions", json=hello, headers=headers) as answer:
                    assert answer.status == 200
                    await answer.read()

            await chat("root", "-")
            await asyncio.gather(chat("left", "root"), chat("right", "root", stream=True))
            await chat("join", "left,right")
        await engine.stop()

    asyncio.run(serve())
    assert main(["workload", "convert", str(calls), str(trace)]) == 0
    assert "1 programs, 4 calls" in capsys.readouterr().out
    (program,) = load(trace)
    assert [call.parents for call in program.calls] == [(), (0,), (0,), (1, 2)]
    assert "secret" not in calls.read_text()
    assert main(["sim", "run", str(trace), "-n", "1", "--rho", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
