"""The scheduler's configuration."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from autellix_backend.core.config import CALL_LEVELS, SchedulerConfig, bounds_for


def test_the_number_of_levels_follows_the_bounds() -> None:
    assert SchedulerConfig().level_count == 13
    assert SchedulerConfig(bounds=()).level_count == 1


@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(),
        SchedulerConfig(policy="plas", bounds=(1.0,), quanta=(2.0, math.inf), beta=math.inf, period_steps=4),
        SchedulerConfig(policy="hinted", demotes=False, preemption="never", service="tokens", token_s=0.1),
    ],
)
def test_a_configuration_survives_json(config: SchedulerConfig) -> None:
    text = json.dumps(config.to_mapping(), allow_nan=False)

    assert SchedulerConfig.from_mapping(json.loads(text)) == config


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
        ("quanta", (1.0, 2.0, 0.0, 1.0, 1.0)),
        ("beta", 0.0),
        ("beta", math.nan),
        ("period_steps", 0),
    ],
)
def test_a_bad_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        SchedulerConfig(**{field: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy", 3),
        ("bounds", 1.0),
        ("bounds", "0.1,0.4"),
        ("bounds", ["soon"]),
        ("bounds", None),
        ("beta", True),
        ("beta", "much"),
        ("period_steps", 1.5),
        ("period_steps", True),
        ("demotes", 1),
        ("service", 2),
        ("token_s", "cheap"),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{key} must"):
        SchedulerConfig.from_mapping({key: value})


def test_an_unknown_key_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'bound' is no scheduler setting; the settings are beta, bounds"):
        SchedulerConfig.from_mapping({"bound": [1]})


def test_left_out_quanta_are_the_widths_of_the_levels() -> None:
    assert SchedulerConfig.from_mapping({"quanta": None}).quanta is None


def test_quanta_are_positive() -> None:
    with pytest.raises(ValueError, match="quanta must be positive"):
        SchedulerConfig(bounds=(1.0,), quanta=(1.0, 0.0))


def test_bounds_follow_from_a_mean_call() -> None:
    bounds = bounds_for(2.0, first_calls=1.5)
    assert bounds == tuple(3.0 * 2**level for level in range(CALL_LEVELS - 1))
    assert bounds_for(2.0)[0] == 1.0
