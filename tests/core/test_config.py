"""The scheduler's configuration."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autellix_backend.core.config import CALL_LEVELS, SchedulerConfig, bounds_for
from autellix_backend.core.policies import make_policy


@pytest.mark.parametrize(
    ("policy", "admission", "rule"),
    [("boost", "auto", "working_set"), ("plas", "auto", "none"), ("plas", "working_set", "working_set")],
)
def test_the_policy_names_the_admission_rule_of_auto(policy: str, admission: str, rule: str) -> None:
    config = SchedulerConfig(policy=policy, admission=admission)
    assert (config.admission_rule, config.has_admission) == (rule, rule != "none")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "lifo"),
        ("service", "money"),
        ("preemption", "often"),
        ("token_s", 0.0),
        ("token_s", math.inf),
        ("bounds", (0.0, 1.0)),
        ("bounds", (1.0, math.inf)),
        ("bounds", (2.0, 1.0)),
        ("bounds", (1.0, 1.0)),
        ("quanta", (1.0, 2.0)),
        ("quanta", (1.0,) * 12 + (0.0,)),
        ("beta", 0.0),
        ("beta", math.nan),
        ("period_steps", 0),
        ("period_steps", 65),
        ("admission", "some"),
        ("kv_share", 0.0),
        ("kv_share", 1.1),
        ("idle_s", 0.0),
        ("boost", -0.1),
        ("boost", math.inf),
    ],
)
def test_a_bad_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        SchedulerConfig(**{field: value})


def test_bounds_follow_from_a_mean_call() -> None:
    bounds = bounds_for(2.0, first_calls=1.5)
    assert bounds == tuple(3.0 * 2**level for level in range(CALL_LEVELS - 1))
    assert bounds_for(2.0)[0] == 1.0


def test_the_number_of_levels_follows_the_bounds() -> None:
    assert SchedulerConfig().level_count == 13
    assert SchedulerConfig(bounds=()).level_count == 1


def test_the_spelling_of_0_2_is_accepted() -> None:
    config = SchedulerConfig(policy="atlas-dag", admission="working-set")
    assert (config.policy, config.admission) == ("atlas_dag", "working_set")
    assert make_policy("atlas-dag").name == "atlas_dag"
