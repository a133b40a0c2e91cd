from __future__ import annotations

import argparse
import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from autellix_backend.cli.main import main
from autellix_lab.bench.backend import BackendError, BackendProcess, to_toml
from autellix_lab.bench.results import CallResult
from autellix_lab.cli import demo


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_defaults_compare_fcfs_and_boost() -> None:
    args = parse()
    assert args.policies == ("fcfs", "boost")
    assert args.rho > 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--policies", "fcfs,lottery"],
        ["--policies", "fcfs"],
        ["--rho", "0"],
        ["--rho", "much"],
        ["--rounds", "0"],
        ["--rounds", "1.5"],
        ["--workload", "poem"],
        ["--kv-blocks", "63"],
    ],
)
def test_a_bad_argument_ends_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_missing_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["demo", "--trace", str(tmp_path / "absent.jsonl"), "--out", str(tmp_path)])
    assert code == 2
    assert "absent.jsonl cannot be read" in capsys.readouterr().err


def test_a_backend_that_dies_shows_its_log(tmp_path: Path) -> None:
    settings = {"scheduler": {"policy": "lottery"}}
    with BackendProcess("bad", "demo", settings, tmp_path) as backend:
        backend.launch()
        with pytest.raises(BackendError, match="lottery"):
            backend.wait_ready(60.0)


def test_settings_are_written_as_toml() -> None:
    text = to_toml({"scheduler": {"policy": "atlas", "bounds": [0.5, 1.0]}, "gateway": {"x": math.inf}})
    assert text == '[scheduler]\npolicy = "atlas"\nbounds = [0.5, 1.0]\n[gateway]\nx = inf\n'


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_moves_on_a_terminal_only(is_terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=80)
    with demo.follow_runs(console, 1) as (follow, report_progress):
        report_progress("scarce slots: starting")
        advance = follow("scarce slots, round 1 of 1, fcfs", 1)
        advance(CallResult(program="p", call=0, thread="main", submit_s=0.0, finish_s=1.0))
    assert file.getvalue().count("scarce slots: starting") == 1
    assert ("round 1 of 1, fcfs" in file.getvalue()) == is_terminal
