"""Random scripts on vLLM's scheduler and ours; a runner without a model checks what each KV slot holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# vLLM's imports take seconds, and the machine may be busy.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def examine(*options: str) -> dict[str, Any]:
    """Play scripts in a process of its own, because vLLM's imports warn; return what it counted."""
    pytest.importorskip("vllm")
    command = [sys.executable, "-m", "tests.vllm_plugin.fuzz.play", *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{run.stdout[-20_000:]}\n{run.stderr[-4000:]}"
    tally: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return tally


@pytest.mark.parametrize("seeds", ["1-40", "41-80", "81-120"])
def test_random_scripts_have_right_answers_and_books(seeds: str) -> None:
    """Every call ends with its answer, in about the steps of vLLM's own scheduler, and nothing is left."""
    tally = examine("--seeds", seeds)
    assert tally["scripts"] - tally["upstream"] > 30
    assert tally["preemptions"] > 100


def test_after_a_fault_anywhere_the_engine_goes_on() -> None:
    """One of our methods raises once in each script: all answers are those of vLLM's own scheduler."""
    tally = examine("--seeds", "1-100", "--faults")
    assert tally["faults"] > 20


def test_a_load_that_fails_while_the_next_step_has_begun_fails_its_call_alone() -> None:
    """A script that long runs have found: two steps overlap, and the first of them cannot load."""
    tally = examine("--seeds", "1795935522887236-1795935522887236")
    assert (tally["scripts"], tally["upstream"]) == (1, 0)


def test_calls_that_run_in_one_step_in_two_take_as_long_as_those_that_take_turns() -> None:
    """A script that long runs have found: with two steps under way, tokens come in 327 steps, or in 514."""
    tally = examine("--seeds", "1795938178954101-1795938178954101")
    assert (tally["scripts"], tally["plain"]) == (1, 1)
    assert tally["most_steps"] < 1.1
