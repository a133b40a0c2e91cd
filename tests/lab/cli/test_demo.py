from __future__ import annotations

import argparse
import json
import math
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from autellix_backend.cli.main import main
from autellix_lab.bench.backend import BackendError, BackendProcess, to_toml
from autellix_lab.cli import demo


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_defaults_compare_fcfs_and_boost() -> None:
    args = parse()
    assert args.policies == ("fcfs", "boost")
    assert args.rho > 1 > args.low_rho


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
        ["--kv-blocks", "126"],
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


def test_a_watched_demo_opens_its_race_and_tells_it_what_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    states: list[dict[str, Any]] = []

    def look(_options: object, _parts: object, _follow: object, tell: Any, begin: Any) -> list[Any]:
        tell("starting the engines")
        with urllib.request.urlopen(opened[0] + "race") as answer:
            states.append(json.loads(answer.read()))
        assert callable(begin)
        return []

    monkeypatch.setattr(demo, "run_parts", look)
    monkeypatch.setattr(demo, "LAST_LOOK_S", 0.0)
    monkeypatch.setattr("webbrowser.open", lambda url: not opened.append(url))  # type: ignore[func-returns-value]
    parts = ["--programs", "3", "--tool-programs", "3"]
    monkeypatch.setattr(demo, "_show", lambda *_: 0)

    assert main(["demo", "--watch", *parts, "--out", str(tmp_path)]) == 0
    assert f"the race is shown at {opened[0]}" in capsys.readouterr().out
    assert [(state["news"], state["policies"]) for state in states] == [
        ("starting the engines", ["fcfs", "boost"])
    ]
