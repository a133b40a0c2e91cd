"""The scheduler's configuration as JSON values, in which infinity is written "inf"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import msgspec

from autellix_backend.core.config import SchedulerConfig

_NAMES = sorted(field.name for field in fields(SchedulerConfig))


def scheduler_from_mapping(mapping: Mapping[str, Any]) -> SchedulerConfig:
    """Build a configuration from JSON values.

    Raises:
        ValueError: if a key is unknown or a value does not fit its field; the message names it.
    """
    for name in mapping:
        if name not in _NAMES:
            raise ValueError(f"{name!r} is no scheduler setting; the settings are {', '.join(_NAMES)}")
    try:
        return msgspec.convert({name: _parsed(value) for name, value in mapping.items()}, SchedulerConfig)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def scheduler_to_mapping(config: SchedulerConfig) -> dict[str, Any]:
    """Return JSON values that scheduler_from_mapping turns back into an equal configuration."""
    return {name: _plain(value) for name, value in asdict(config).items()}


def _parsed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_parsed(item) for item in value]
    return math.inf if value == "inf" else value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return "inf" if value == math.inf else value
