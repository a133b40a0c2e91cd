"""`autellix trace export`: recorded programs in formats of other tools, with one clear line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.report.traces import recorded_trace

from autellix_backend.cli.main import main
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.loaders import load
from autellix_lab.workload.trace_files import write_traces


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.jsonl"
    write_traces(path, recorded_trace(4))
    return path


def test_perfetto_is_one_file(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["trace", "export", "--perfetto", str(trace), "-o", str(out)]) == 0
    assert json.loads(out.read_text())["traceEvents"]
    assert capsys.readouterr().out == f"{out}: 4 programs\n"


@pytest.mark.parametrize("form", ["weka", "otel"])
def test_a_folder_holds_a_file_for_each_program(
    form: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / form
    assert main(["trace", "export", f"--{form}", str(trace), "-o", str(out)]) == 0
    assert [program.program_id for program in load(out)] == [f"program-{number}" for number in range(4)]
    assert capsys.readouterr().out == f"{out}: 4 programs\n"


@pytest.mark.parametrize("form", ["--perfetto", "--weka", "--otel"])
def test_programs_without_times_are_refused(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "generated.jsonl"
    write_traces(path, generate_programs("chat", 2, seed=1))
    assert main(["trace", "export", form, str(path), "-o", str(tmp_path / "out")]) != 0
    assert "no program has the times of its calls" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["--weka", "--otel"])
def test_a_history_lacks_prompts(form: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["trace", "export", form, "--history", "-o", str(tmp_path)]) != 0
    assert f"{form} needs a TRACE" in capsys.readouterr().err
