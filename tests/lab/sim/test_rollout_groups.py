"""The simulated training step of groups of rollouts."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.sim.simulation import simulate

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the benchmark's module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("rollout_groups")


def test_the_rollouts_of_a_group_share_a_prompt_of_their_own(study: Any) -> None:
    for shape in study.SHAPES.values():
        programs = study.rollouts(shape, seed=1, groups=3)
        assert Counter(program.group for program in programs) == {"0": 8, "1": 8, "2": 8}
        prompts = {(program.group, program.system_prefix_tokens) for program in programs}
        assert len(prompts) == len({prompt for _, prompt in prompts}) == 3
        assert {program.calls[0].prefill_tokens for program in programs} == {prompt for _, prompt in prompts}


def test_a_step_ends_with_the_last_group(study: Any) -> None:
    """In scarce memory groups end earlier where the scheduler knows them."""
    arrivals = [(0.0, program) for program in study.rollouts(study.SHAPES["tools"], 0, groups=8)]
    found = {
        case: study.times_of(simulate(arrivals, settings).programs)
        for case, settings in study.cases(0.0625).items()
    }
    for times in found.values():
        assert times.rollout_s < times.group_s < times.step_s
    assert found["groups"].group_s < found["default"].group_s < found["vLLM"].group_s


def test_the_table_has_ratios_to_our_default(study: Any) -> None:
    base = [study.Times(100.0, 50.0, 40.0), study.Times(200.0, 80.0, 60.0)]
    groups = [study.Times(100.0, 40.0, 40.0), study.Times(100.0, 80.0, 60.0)]
    assert study.rows("tools", 0.25, {"default": base, "groups": groups}) == [
        ("tools", "0.25", "default", "150 s", "65 s", "50 s"),
        ("tools", "0.25", "groups", "0.75 (0.50 to 1.00)", "0.90 (0.80 to 1.00)", "1.00 (1.00 to 1.00)"),
    ]
