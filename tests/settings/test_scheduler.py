"""The scheduler's configuration as JSON values."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.settings.scheduler import scheduler_from_mapping, scheduler_to_mapping


@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(),
        SchedulerConfig(policy="plas", bounds=(1.0,), quanta=(2.0, math.inf), beta=math.inf, period_steps=4),
        SchedulerConfig(policy="plas", demotes=False, preemption="never", service="tokens", token_s=0.1),
    ],
)
def test_a_configuration_survives_json(config: SchedulerConfig) -> None:
    text = json.dumps(scheduler_to_mapping(config), allow_nan=False)

    assert scheduler_from_mapping(json.loads(text)) == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy", 3),
        ("bounds", ["soon"]),
        ("beta", "much"),
        ("period_steps", 1.5),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"\$\.{key}\b"):
        scheduler_from_mapping({key: value})


def test_an_unknown_key_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"'bound' is no scheduler setting; the settings are admission, beta, boost, bounds"
    ):
        scheduler_from_mapping({"bound": [1]})


def test_omitted_quanta_are_the_widths_of_the_levels() -> None:
    assert scheduler_from_mapping({"quanta": None}).quanta is None
