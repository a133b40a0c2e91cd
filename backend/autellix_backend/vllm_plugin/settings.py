"""The plugin's settings, read from the `autellix` key of vLLM's `--additional-config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_backend.settings.scheduler import scheduler_from_mapping

SECTION = "autellix"
_ADDRESS = r"^(tcp://(\[[0-9a-fA-F:]+\]|[^\s:/]+):[0-9]{1,5}|ipc:///.+)$"


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one engine's scheduler: its policy, and where its reports and its record go."""

    scheduler: SchedulerConfig
    report_address: str | None = None
    """Where the engine listens for gateways: a port, or a socket of this machine."""
    record_dir: str | None = None
    """The folder in which the engine records the events of its scheduler, from its start on."""

    @classmethod
    def from_additional_config(cls, additional_config: object) -> PluginSettings:
        """Read the settings; an absent section means the defaults, an unknown key is an error.

        Raises:
            ValueError: A key is unknown or a value is of the wrong kind; the message names it.
        """
        given = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
        try:
            section = msgspec.convert(given, _PluginSection)
            scheduler = scheduler_from_mapping(section.scheduler)
        except (msgspec.ValidationError, ValueError) as error:
            raise ValueError(f"additional-config: {SECTION}: {error}") from None
        if scheduler.policy not in LIVE_POLICY_NAMES:
            raise ValueError(
                f"additional-config: {SECTION}: policy must be one of {', '.join(LIVE_POLICY_NAMES)}; "
                f"{scheduler.policy!r} works in the simulator only"
            )
        return cls(scheduler=scheduler, report_address=section.report_address, record_dir=section.record_dir)


class _PluginSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scheduler: dict[str, Any] = {}
    report_address: Annotated[str, msgspec.Meta(pattern=_ADDRESS)] | None = None
    record_dir: Annotated[str, msgspec.Meta(min_length=1)] | None = None
