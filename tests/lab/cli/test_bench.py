"""`autellix bench`: a recording of the gateway is played back, and results are compared."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine, Fault
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.cli.main import main
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.base import Engine
from autellix_backend.settings import GatewaySettings, ObserveSettings, Settings
from autellix_lab.cli import bench
from autellix_lab.workload.loaders import load
from autellix_lab.workload.trace import CallTrace, ProgramTrace
from autellix_lab.workload.trace_files import read_traces, write_traces


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(["replay", "trace.jsonl", "--url", "http://h", *arguments])


def program(name: str, arrival_s: float | None = None, calls: int = 2) -> ProgramTrace:
    return ProgramTrace(
        source="test",
        program_id=name,
        arrival_s=arrival_s,
        calls=tuple(
            CallTrace(
                id=number,
                parents=(number - 1,) if number else (),
                thread="main",
                prefill_tokens=12,
                decode_tokens=3,
                gap_before_s=0.01,
            )
            for number in range(calls)
        ),
    )


def gateway(
    engine: Engine, *, call_log: Path | None = None, **settings: Any
) -> AbstractAsyncContextManager[str]:
    whole = Settings(
        gateway=GatewaySettings(**settings),
        scheduler=SchedulerConfig(policy="plas"),
        observe=ObserveSettings(call_log=call_log),
    )
    return listening(create_app(whole, engine))


def with_fake_engine(behaviour: FakeBehaviour, use: Callable[[str], int], **settings: Any) -> int:
    """Run `use` in a thread with the address of a gateway in front of a fake engine."""

    async def run(folder: Path) -> int:
        engine = FakeEngine(behaviour, report_address=f"ipc://{folder}/reports")
        await engine.start()
        try:
            async with gateway(engine, **settings) as url:
                return await asyncio.to_thread(use, url)
        finally:
            await engine.stop()

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder)))


def test_a_recording_is_replayed_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original, recording = tmp_path / "original.jsonl.gz", tmp_path / "recording.jsonl"
    calls = tmp_path / "calls.jsonl"
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_traces(original, [program("a"), program("b", calls=3)])
    behaviour = FakeBehaviour(output_tokens=100, wait_s=0.25)

    def play(trace: Path, out: Path, *more: str) -> Callable[[str], int]:
        return lambda url: main(
            ["bench", "replay", str(trace), "--url", url + "/v1/", "--out", str(out), *more]
        )

    more = ("--rate", "20", "--gaps", "capped:0.05")
    assert with_fake_engine(behaviour, play(original, first, *more), call_log=calls) == 0
    assert main(["workload", "convert", str(calls), str(recording)]) == 0
    assert "program token latency (ms/token)" in capsys.readouterr().out
    recorded = [item for item in read_traces(recording) if item.source == "test"]
    assert sorted(len(item.calls) for item in recorded) == [2, 3]
    assert all(call.decode_tokens == 3 for item in recorded for call in item.calls)
    assert [call.parents for call in max(recorded, key=lambda item: len(item.calls)).calls] == [
        (),
        (0,),
        (1,),
    ]
    write_traces(recording, recorded)

    assert with_fake_engine(behaviour, play(recording, second, "--json")) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["figures"]["cache_hits"] == 0.0
    assert shown["setting"]["arrivals"] == "recorded"
    # The engine's waits, and the moments at the gateway.
    waits_s = [0.25 * len(item.calls) for item in recorded]
    assert [item["wait_s"] for item in shown["outcomes"]] == pytest.approx(waits_s, abs=0.1)

    assert main(["bench", "compare", str(first), str(second)]) == 0
    text = capsys.readouterr().out
    assert "/ first" in text
    assert "differs: trace: first original.jsonl.gz, second recording.jsonl" in text
    assert "second: no verdict: 0 programs finished in both runs, of 5 needed" in text
    assert main(["bench", "compare", str(first), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["first"]["figures"]["lost_calls"] == 0


def test_an_endpoint_without_receipts_has_the_available_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    write_traces(trace, [program("a"), program("a")])

    async def run() -> int:
        engine = FakeEngine(FakeBehaviour(output_tokens=100))
        await engine.start()
        try:
            arguments = ["bench", "replay", str(trace), "--url", engine.base_url, "--arrivals", "at_once"]
            return await asyncio.to_thread(main, arguments)
        finally:
            await engine.stop()

    assert asyncio.run(run()) == 0
    text = capsys.readouterr().out
    assert "4 calls came without an engine report" in text
    lines = {line.split("│")[1].strip(): line for line in text.splitlines() if line.count("│") > 2}
    assert "n/a" in lines["waiting per program (s)"]
    assert "n/a" in lines["cached share of prompt tokens"]
    assert "n/a" not in lines["program latency (s)"]
    # Both programs of one id count.
    assert lines["programs without a lost call"].split("│")[3].strip() == "2"


WEKA_REQUESTS = [
    {"t": 0.0, "type": "n", "in": 69, "out": 3, "hash_ids": [1], "input_types": ["text"], "api_time": 0.01},
    {
        "t": 0.1,
        "type": "n",
        "in": 133,
        "out": 3,
        "hash_ids": [1, 2],
        "input_types": ["text"],
        "api_time": 0.01,
    },
]


def test_a_public_trace_is_played_on_two_servers_in_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        session = {
            "id": f"s{number}",
            "block_size": 64,
            "tool_tokens": 9,
            "system_tokens": 9,
            "models": ["m"],
        }
        trace = tmp_path / f"trace_{number}.json"
        trace.write_text(json.dumps(session | {"requests": WEKA_REQUESTS}), encoding="utf-8")
    out, order = tmp_path / "out.json", list[str]()

    async def run(*more: str) -> int:
        engines = [FakeEngine(FakeBehaviour(output_tokens=100), name=name) for name in ("one", "two")]
        for engine in engines:
            await engine.start()
        try:
            urls = [word for engine in engines for word in ("--url", engine.base_url)]
            words = ["bench", "replay", str(tmp_path), *urls, "--rounds", "2", "--arrivals", "at_once"]
            code = await asyncio.to_thread(main, [*words, "--gaps", "zero", "--out", str(out), *more])
            for engine in engines:
                prompts = [call.json["messages"][0]["content"] for call in engine.calls]
                assert len(prompts) == 2 * (2 + 10)
                order.extend(prompts)
            return code
        finally:
            for engine in engines:
                await engine.stop()

    assert asyncio.run(run()) == 0
    shown = capsys.readouterr().out
    assert "program latency (s)" in shown and "/ http://127.0.0.1:" in shown and "lost calls" in shown
    document = json.loads(out.read_text())
    first, second = document["results"].values()
    assert [item["programs"] for item in (first, second)] == [10, 10]
    assert first["setting"]["rounds"] == 2
    assert [verdict["programs"] for verdict in document["verdicts"].values()] == [10]
    # Two servers may have one engine behind them: no run repeats the words of another but the probe's.
    second_calls = [prompt for prompt in order if len(prompt) > 500]
    assert (len(second_calls), len(set(second_calls))) == (20 + 4, 20 + 1)


def test_lost_calls_give_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    write_traces(trace, [program("a")])
    behaviour = FakeBehaviour(fault=Fault.HANG)

    def play(url: str) -> int:
        return main(["bench", "replay", str(trace), "--url", url, "--rate", "1", "--timeout", "0.2"])

    assert with_fake_engine(behaviour, play, shutdown_grace_s=0.1) == 1
    assert "the backend does not answer: Request timed out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "absent.jsonl", "--url", "http://h"], "absent.jsonl cannot be read"),
        (["replay", "trace.jsonl", "--url", "http://h"], "2 of 3 programs have no arrival_s"),
        (["replay", "trace.jsonl", "--url", "http://h", "--arrivals", "bursty"], "needs --rate"),
        (
            ["replay", "trace.jsonl", "--url", "http://h", "--arrivals", "at_once", "--rate", "1"],
            "--rate has no meaning with --arrivals at_once",
        ),
        (
            ["replay", "trace.jsonl", "--url", "http://h", "--rate", "1", "--max-context", "1"],
            "--max-context",
        ),
        (
            ["replay", "trace.jsonl", "--url", "http://h", "--rate", "1", "--model", "m", "--out", "no/x"],
            "no/x",
        ),
        (
            ["replay", "trace.jsonl", "--url", "http://h", "--url", "http://h/v1", "--rate", "1"],
            "the same server is named twice",
        ),
        (["compare", "trace.jsonl"], "trace.jsonl: file is not JSON"),
        (["compare", "same.json", "same.json"], "the same result file is named twice"),
    ],
)
def test_bad_input_gives_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_traces(Path("trace.jsonl"), [program("a"), program("b", 1.0), program("c")])
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("autellix: error: ")
    assert message in error


def test_a_server_that_is_not_there_gives_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_traces(tmp_path / "t.jsonl", [program("a", 0.0)])
    assert main(["bench", "replay", str(tmp_path / "t.jsonl"), "--url", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9 does not answer /v1/models" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gaps", "some"],
        ["--gaps", "capped:x"],
        ["--gaps", "capped:-1"],
        ["--rate", "0"],
        ["--programs", "0"],
    ],
)
def test_a_bad_argument_ends_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_recorded_arrivals_start_at_zero_and_keep_each_programs_place() -> None:
    programs = [program("late", 30.0), program("early", 10.0), program("middle", 20.0)]
    assert bench.plan_arrivals(parse(), programs) == (20.0, 0.0, 10.0)
    scaled = bench.plan_arrivals(parse("--arrivals", "recorded", "--rate", "1"), programs)
    assert scaled == pytest.approx((2.0, 0.0, 1.0))


def test_a_rate_alone_is_a_poisson_process_and_bursts_differ() -> None:
    programs = [program(str(number)) for number in range(200)]
    poisson = bench.plan_arrivals(parse("--rate", "2"), programs)
    assert poisson == bench.plan_arrivals(parse("--rate", "2", "--arrivals", "poisson"), programs)
    burst = bench.plan_arrivals(parse("--rate", "2", "--arrivals", "bursty"), programs)
    assert burst != poisson
    assert bench.plan_arrivals(parse("--arrivals", "at_once"), programs) == (0.0,) * 200


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_recording_of_the_real_engine_is_replayed(live_engine: Any, tmp_path: Path) -> None:
    calls, recording, out = (tmp_path / name for name in ("calls.jsonl", "recording.jsonl", "result.json"))
    # Long enough for several blocks of the prefix cache, which has 128 tokens to a block on a CPU.
    body = {
        "model": "autellix.demo-model",
        "messages": [{"role": "user", "content": "Tell me about queues, and why they are long. " * 40}],
        "max_tokens": 12,
        "ignore_eos": True,
    }

    async def run() -> int:
        logging = gateway(live_engine, call_log=calls, report_wait_s=5.0)
        async with logging as url, aiohttp.ClientSession() as client:
            for number in range(3):
                headers = {"X-Autellix-Program-ID": f"p{number}"}
                for _ in range(2):
                    post = client.post(url + "/v1/chat/completions", json=body, headers=headers)
                    async with post as response:
                        assert response.status == 200, await response.text()
        write_traces(recording, load(calls))
        async with gateway(live_engine, report_wait_s=5.0) as url:
            arguments = ["bench", "replay", str(recording), "--url", url, "--out", str(out)]
            return await asyncio.to_thread(main, arguments)

    assert asyncio.run(run()) == 0
    programs = read_traces(recording)
    assert [len(item.calls) for item in programs] == [2, 2, 2]
    assert all(item.calls[1].prefix_from == 0 for item in programs)
    result = json.loads(out.read_text())
    assert result["lost_calls"] == result["calls_without_report"] == 0
    assert [item["output_tokens"] for item in result["outcomes"]] == [24, 24, 24]
    # Prompts have the recorded lengths within the rounding of words to tokens.
    for item, played in zip(programs, result["outcomes"], strict=True):
        wanted = sum(call.prefill_tokens for call in item.calls)
        assert played["prompt_tokens"] == pytest.approx(wanted, rel=0.1)
    assert result["figures"]["cache_hits"] > 0
