"""`autellix report` and `autellix trace export`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.page.stage import Stage, staged, telling_program
from tests.page.traces import recorded_trace

from autellix_backend.cli.main import main
from autellix_lab.bench.result_file import make_result, result_to_json
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace_files import write_traces


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.jsonl"
    write_traces(path, recorded_trace(12))
    return path


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text.split('id="report-data">')[1].split("</script>")[0])
    return data


def test_a_trace_becomes_a_page(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"

    assert main(["report", str(trace), "-o", str(page)]) == 0

    data = data_of(page)
    assert data["title"] == "traffic.jsonl"
    assert len(data["programs"]) == len(data["timelines"]) == 12
    assert [run["label"] for run in data["runs"]] == ["traffic"]
    assert capsys.readouterr().out.startswith(f"{page}: 12 programs, 1 runs, ")


def test_policies_are_simulated_at_the_recorded_arrivals(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"

    assert main(["report", str(trace), "--policies", "fcfs,boost,srpt", "-o", str(page)]) == 0

    data = data_of(page)
    assert [(run["label"], len(run["outcomes"])) for run in data["runs"]] == [
        ("fcfs", 12),
        ("boost", 12),
        ("srpt", 12),
    ]
    assert data["notes"][0].startswith("Simulated, not measured: llama3.1-8b-a100;")
    assert data["notes"][0].endswith("arrivals as recorded.")
    assert data["notes"][1].startswith("Srpt knows what each program still needs")


def test_programs_without_arrivals_need_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, page = tmp_path / "bare.jsonl", tmp_path / "report.html"
    write_traces(trace, [replace(program, arrival_s=None) for program in recorded_trace(5)])
    asked = ["report", str(trace), "--policies", "fcfs", "-o", str(page)]

    assert main(asked) == 2
    assert "expected --rho X" in capsys.readouterr().err
    assert main([*asked, "--rho", "0.8"]) == 0
    assert "Poisson at an offered load of 0.8" in data_of(page)["notes"][0]


def test_results_are_compared(tmp_path: Path) -> None:
    programs = recorded_trace(3)
    files = []
    for name, factor in (("fcfs", 2.0), ("boost", 1.0)):
        results = [
            CallResult(
                program=program.program_id,
                call=call.id,
                thread=call.thread,
                submit_s=0.0,
                finish_s=factor * (1.0 + call.id),
                output_tokens=10,
            )
            for program in programs
            for call in program.calls
        ]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(result_to_json(make_result({}, programs, [0.0] * 3, results))))
        files.append(str(path))
    page = tmp_path / "report.html"

    assert main(["report", *files, "-o", str(page), "--title", "Two policies"]) == 0

    data = data_of(page)
    assert (data["title"], data["programs"]) == ("Two policies", [])
    latencies = [[outcome["latency_s"] for outcome in run["outcomes"]] for run in data["runs"]]
    assert latencies[0] == [2.0 * value for value in latencies[1]]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["none.jsonl"], "cannot be read"),
        (["none.json"], "cannot be read"),
        (["{trace}", "{trace}", "--policies", "fcfs"], "expected one TRACE"),
    ],
)
def test_bad_input_is_told(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    given = [argument.format(trace=trace) for argument in arguments]

    assert main(["report", *given, "-o", str(tmp_path / "out.html")]) == 2
    assert problem in capsys.readouterr().err


def test_an_unknown_policy_is_refused(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", str(trace), "--policies", "fcfs,magic", "-o", "x.html"])
    assert "'magic'" in capsys.readouterr().err


def test_a_trace_is_exported_for_perfetto(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"

    assert main(["trace", "export", "--perfetto", str(trace), "-o", str(out)]) == 0

    events = json.loads(out.read_text())["traceEvents"]
    calls = sum(len(program.calls) for program in recorded_trace(12))
    assert sum(event.get("cat") == "call" for event in events) == calls
    assert capsys.readouterr().out == f"{out}: 12 programs\n"


def test_a_gateways_history_is_exported_with_what_calls_did(stage: Stage, tmp_path: Path) -> None:
    stage.restore(telling_program("run/1"))
    out = tmp_path / "trace.json"

    assert main(["trace", "export", "--perfetto", "--history", "--url", stage.url, "-o", str(out)]) == 0

    events = json.loads(out.read_text())["traceEvents"]
    assert {event["name"] for event in events if event.get("cat") == "span"} == {
        "inactive",
        "waiting",
        "prefill",
        "decode",
        "preempted",
        "engine",
    }


def test_a_trace_without_times_has_nothing_to_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "bare.jsonl"
    [program] = recorded_trace(1)
    write_traces(trace, [replace(program, calls=tuple(replace(c, start_s=None) for c in program.calls))])

    assert main(["trace", "export", "--perfetto", str(trace), "-o", str(tmp_path / "x.json")]) == 2
    assert "no program has the times of its calls" in capsys.readouterr().err


@pytest.fixture
def stage() -> Any:
    with staged() as found:
        yield found
