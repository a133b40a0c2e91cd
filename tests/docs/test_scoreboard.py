"""The scoreboard has every figure that the README gives, and judges small versions rightly."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.docs.pages import ROOT
from tests.docs.test_code import check_command, problems_of

NUMBER = re.compile(r"\d(?:[\d.,]*\d)?")
RESULTS = ROOT / "docs/results"


def load(name: str) -> ModuleType:
    """Import a program of scripts/ as a module."""
    path = ROOT / "scripts" / name
    loader = SourceFileLoader(path.stem, str(path))
    spec = importlib.util.spec_from_loader(path.stem, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    loader.exec_module(module)
    return module


page: Any = load("scoreboard_page.py")
board: Any = load("scoreboard")
CLAIMS: list[Any] = page.read_claims()
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.slug)


def small(**fields: Any) -> Any:
    return page.SmallVersion(**{"run": ["true"], "expected": 2.0, "noise": 0.5, **fields})


# The table.


def test_every_figure_of_the_readme_is_in_the_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    results = readme.partition("## What it gains\n")[2].partition("\n## ")[0]
    prose = re.sub(r"\]\([^)]*\)", "]", results)
    assert NUMBER.findall(prose)
    assert set(NUMBER.findall(prose)) - set(NUMBER.findall(page.page())) == set()


@each_claim
def test_the_figures_of_a_row_are_on_its_page(claim: Any) -> None:
    path = RESULTS / claim.page.partition("#")[0]
    shown = set(NUMBER.findall(path.read_text(encoding="utf-8")))
    assert set(NUMBER.findall(f"{claim.figure} {claim.loses}")) - shown == set()


def test_names_of_rows_are_unique() -> None:
    assert len({claim.slug for claim in CLAIMS}) == len(CLAIMS)


@each_claim
def test_the_commands_of_a_row_parse(claim: Any) -> None:
    run = [claim.command, *(claim.small.run if claim.small else ())]
    commands = [shlex.split(command) for command in run]
    assert problems_of(commands, check_command) == []
    paths = [word for words in commands for word in words if word.startswith("tests/")]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@each_claim
def test_the_small_version_of_a_row_can_be_read(claim: Any) -> None:
    if claim.small:
        assert bool(claim.small.keys) is not bool(claim.small.pattern)
        assert re.compile(claim.small.pattern, re.MULTILINE).groups <= 2


# The runner.


def test_a_figure_is_read_from_json_behind_a_log() -> None:
    assert board.figure_of(small(keys=[["a", 1]]), ['loading {model}\n{"a": [1, 2.5]}\ndone']) == 2.5


def test_of_two_numbers_the_figure_is_the_second_over_the_first() -> None:
    assert board.figure_of(small(keys=[["s"]]), ['{"s": 4}', '{"s": 1}']) == 0.25
    assert board.figure_of(small(pattern=r"^a (\d+)\nb (\d+)"), ["x\na 2\nb 3"]) == 1.5


def test_matches_are_counted_where_a_pattern_has_no_group() -> None:
    assert board.figure_of(small(pattern="failed"), ["failed failed"]) == 2
    assert board.figure_of(small(pattern="failed"), ["fine"]) == 0


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"pattern": r"(\d+)"}, "none"),
        ({"keys": [["a"]]}, "none"),
        ({"keys": [["a"]]}, '{"b": 1}'),
        ({"keys": [["a"], ["b"]]}, '{"a": 0, "b": 1}'),
    ],
)
def test_an_output_without_the_figure_is_a_failure(fields: dict[str, Any], output: str) -> None:
    with pytest.raises(board.RowError, match="no figure"):
        board.figure_of(small(**fields), [output])


@pytest.mark.parametrize(
    ("shown", "state"), [("1.5", "within"), ("2.5", "within"), ("2.6", "moved"), ("1", "moved")]
)
def test_a_row_has_moved_beyond_its_noise_on_either_side(shown: str, state: str) -> None:
    score = score_of(small(run=[f"echo {shown}"], pattern="(.+)"))
    assert (score.state, score.measured) == (state, float(shown))


def score_of(version: Any, **environment: str) -> Any:
    return board.Runs({"PATH": "/usr/bin:/bin", **environment}).score("one", version)


def test_a_row_is_skipped_without_its_data_and_programs(tmp_path: Path) -> None:
    needs_data = small(run=["cat $DATA"])
    assert "not set" in score_of(needs_data).why
    assert "absent" in score_of(needs_data, DATA=str(tmp_path / "none")).why
    assert "not installed" in score_of(small(needs=["no_such_program"])).why
    assert {score_of(needs_data).state, score_of(small(needs=["no_such_program"])).state} == {"skipped"}


def test_a_row_without_a_small_version_is_skipped() -> None:
    assert "no small version" in score_of(None).why
    assert board.table_of([score_of(None)]).splitlines()[2].split()[1] == "one"


def test_a_row_has_an_empty_folder_and_its_data(tmp_path: Path) -> None:
    (tmp_path / "figure").write_text("2", encoding="utf-8")
    version = small(run=["cp $DATA/figure $OUT/copy", "cat $OUT/copy"], pattern="(.)")
    assert score_of(replace(version, run=["cat $DATA/figure"]), DATA=str(tmp_path)).state == "within"
    assert score_of(small(run=["ls -A $OUT"], pattern="."), DATA=str(tmp_path)).measured == 0


def test_a_command_that_fails_fails_its_row_and_shows_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    score = score_of(small(run=["sh -c 'echo one; echo two >&2; exit 3'"]))
    assert (score.state, score.why) == ("failed", "exit code 3, see its output")
    assert "one\ntwo\n" in capfd.readouterr().err


def test_a_program_that_is_absent_fails_its_row() -> None:
    assert score_of(small(run=["no_such_program"])).state == "failed"


def test_a_command_that_takes_too_long_is_ended_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "LIMIT_S", 1.0)
    child = f"sleep 1000.{os.getpid()}"
    score = score_of(small(run=[f"sh -c '{child} & wait'"]))
    assert score.state == "failed"
    assert "longer than 1 s" in score.why
    assert subprocess.run(["pgrep", "-f", child], capture_output=True).stdout == b""


def test_rows_with_the_same_commands_share_a_run(tmp_path: Path) -> None:
    runs = board.Runs({"PATH": "/usr/bin:/bin"})
    version = small(run=[f"sh -c 'echo x >> {tmp_path}/runs; echo 2 3'"])
    first = runs.score("first", replace(version, pattern="^(.)"))
    second = runs.score("second", replace(version, pattern="(.)$"))
    assert (first.measured, second.measured) == (2, 3)
    assert (tmp_path / "runs").read_text() == "x\n"


def test_moved_rows_come_last_in_the_table() -> None:
    states = ("moved", "within", "failed", "skipped")
    scores = [board.Score(slug=state, state=state, expected=1, noise=0, measured=3) for state in states]
    rows = board.table_of(scores).splitlines()
    assert [row.split()[1] for row in rows[2:]] == ["within", "skipped", "failed", "moved"]
    assert rows[-1].split("|")[5].strip() == "3"


def test_the_summary_names_the_claims_that_moved() -> None:
    claim = CLAIMS[0]
    moved = board.Score(slug=claim.slug, state="moved", expected=1, noise=0)
    assert board.summary_of([moved], {claim.slug: claim}) == [
        "0 within, 0 skipped, 0 failed, 1 moved",
        f"moved: {claim.claim} ({claim.figure})",
    ]
