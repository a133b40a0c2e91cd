"""Recent programs of a gateway, simulated in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.lab.cli.test_whatif import ENGINE, HISTORY, SCHEDULER

from autellix_lab.cli import replay_recent


def document(**fields: Any) -> dict[str, Any]:
    programs = [{**program, "name": "run"} for program in HISTORY]
    usual = {"engines": [ENGINE], "scheduler": SCHEDULER, "programs": programs, "policies": ["fcfs", "boost"]}
    return {**usual, **fields}


def run(**fields: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", replay_recent.__name__],
        input=json.dumps(document(**fields)),
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_policy_has_an_estimate_for_each_program() -> None:
    answer = replay_recent.replay(document())

    assert [each["program_id"] for each in answer["programs"]] == ["long-0", "long-1", "short", "elsewhere"]
    fcfs, boost = answer["policies"]
    assert (fcfs["policy"], boost["policy"]) == ("fcfs", "boost")
    # The short one came after two that take 10 s each.
    assert fcfs["estimated_s"][2] == pytest.approx(18.1, rel=0.1)
    assert boost["estimated_s"][3] == pytest.approx(0.1, rel=0.1)


def test_programs_without_known_tokens_are_left_out() -> None:
    programs = [*document()["programs"], {**HISTORY[0], "program_id": "empty", "name": None, "calls": []}]

    assert replay_recent.replay(document(programs=programs))["left_out"] == 1


def test_the_process_answers_in_json() -> None:
    done = run()

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == replay_recent.replay(document())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"engines": []}, "no engine reports its slots"),
        ({"programs": []}, "the history lacks the tokens of these programs' calls"),
    ],
)
def test_what_is_missing_is_its_last_line(fields: dict[str, Any], expected: str) -> None:
    done = run(**fields)

    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr.splitlines()[-1]
