"""The plugin's settings, read from the `autellix` key of vLLM's `--additional-config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import LIVE_POLICY_NAMES

__all__ = ["SECTION", "PluginSettings"]

SECTION = "autellix"
_KEYS = ("report_socket", "scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The settings of one engine's scheduler: its policy, and where its reports go."""

    scheduler: SchedulerConfig
    report_socket: str | None = None

    @classmethod
    def from_additional_config(cls, additional_config: object) -> PluginSettings:
        """Read the settings; an absent section means the defaults, an unknown key is an error.

        Raises:
            ValueError: A key is unknown or a value is of the wrong kind; the message names it.
        """
        section = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
        if not isinstance(section, Mapping):
            raise ValueError(f"additional-config: '{SECTION}' must be an object, not {section!r}")
        unknown = sorted(set(section) - set(_KEYS))
        if unknown:
            raise ValueError(
                f"additional-config: unknown key '{SECTION}.{unknown[0]}'; known: {', '.join(_KEYS)}"
            )
        return cls(
            scheduler=_scheduler(section.get("scheduler", {})),
            report_socket=_socket_path(section.get("report_socket")),
        )


def _scheduler(value: Any) -> SchedulerConfig:
    if not isinstance(value, Mapping):
        raise ValueError(f"additional-config: '{SECTION}.scheduler' must be an object, not {value!r}")
    config = SchedulerConfig.from_mapping(dict(value))
    if config.policy not in LIVE_POLICY_NAMES:
        raise ValueError(
            f"additional-config: '{SECTION}.scheduler.policy' must be one of {', '.join(LIVE_POLICY_NAMES)}; "
            f"{config.policy!r} works in the simulator only"
        )
    return config


def _socket_path(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise ValueError(f"additional-config: '{SECTION}.report_socket' must be a path, not {value!r}")
