"""Command-line options of settings; their texts and defaults come from the settings."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from autellix_backend.settings import (
    ANY_CLUSTER,
    PRESETS,
    Layer,
    RawValue,
    Settings,
    build_settings,
    fields_of,
    merged_layer,
    settings_to_mapping,
)
from autellix_backend.settings.types import ONE_OF, Check

PREFIX = "setting:"
OPTIONS = {
    "--host": "gateway.host",
    "--port": "gateway.port",
    "--tenants": "gateway.tenants_file",
    "--no-console": "gateway.console",
    "--served-model-name": "engine.served_model_name",
    "--max-num-seqs": "engine.max_num_seqs",
    "--kv-host-gib": "engine.kv_host_gib",
    "--engine-args": "engine.extra_args",
    "--replicas": "engine.replicas",
    "--engine": "engine.urls",
    "--balancer": "balancer.name",
    "--policy": "scheduler.policy",
    "--bounds": "scheduler.bounds",
    "--beta": "scheduler.beta",
    "--preemption": "scheduler.preemption",
    "--period-steps": "scheduler.period_steps",
    "--call-log": "observe.call_log",
    "--otlp-endpoint": "observe.otlp_endpoint",
    "--store": "store.url",
    "--ray": "ray.address",
}
"""Dotted field by option."""
IMPLIED = {"--ray": ANY_CLUSTER}
"""The values of options that are given without one."""
SWITCHES = {
    "--no-console": (
        False,
        "leave out the console: lists of programs, why, history, events, live page",
    )
}
"""The values of options that take none, and their texts."""
REPEATED = ("--engine",)

_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


def add_setting_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declare `--config` and the named options, all when none is named."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    defaults = settings_to_mapping(Settings())
    for name in names or OPTIONS:
        if name in SWITCHES:
            value, text = SWITCHES[name]
            parser.add_argument(
                name,
                dest=PREFIX + OPTIONS[name],
                action="store_const",
                const=value,
                help=text,
            )
            continue
        section, _, key = OPTIONS[name].partition(".")
        text = _LINK.sub(r"\1", text_of(section, key)).replace("`", "") + _choices_text(section, key)
        parser.add_argument(
            name,
            dest=PREFIX + OPTIONS[name],
            action="append" if name in REPEATED else "store",
            nargs="?" if name in IMPLIED else None,
            const=IMPLIED.get(name),
            metavar=name[2:].upper().replace("-", "_"),
            help=f"{text}{_default_text(defaults[section][key])}".replace("%", "%%"),
        )


def add_preset_option(parser: argparse.ArgumentParser) -> None:
    """Declare `--preset`, below all other sources."""
    parser.add_argument(
        "--preset",
        choices=list(PRESETS),
        help="settings that go together, each of which any other source overrides: paper is the scheduler "
        "and the balancer of the paper",
    )


def settings_from_args(args: argparse.Namespace, extra: dict[str, RawValue] | None = None) -> Settings:
    """Build the settings from preset, file, environment and options; later ones win.

    Raises:
        SettingsError: naming the field and the option, variable or file it came from.
    """
    return build_settings(layer_from_args(args, extra))


def layer_from_args(args: argparse.Namespace, extra: dict[str, RawValue] | None = None) -> Layer:
    """Return the raw values of preset, file, environment and options; raises as settings_from_args()."""
    chosen = {option: vars(args).get(PREFIX + name) for option, name in OPTIONS.items()}
    values = {
        OPTIONS[option]: RawValue(value, option) for option, value in chosen.items() if value is not None
    }
    preset = vars(args).get("preset")
    return merged_layer(preset=preset, file=args.config, command_line=values | (extra or {}))


def text_of(section: str, key: str) -> str:
    """Return the meaning of a setting, in Markdown."""
    return " ".join((fields_of(section)[key].description or "").split())


def _choices_text(section: str, key: str) -> str:
    """Return the names that a setting may have, nothing if it is not one of a few names."""
    checks = (getattr(item, "func", None) for item in fields_of(section)[key].metadata)
    expected = (check.expected for check in checks if isinstance(check, Check))
    return "".join(f"; {names}" for names in expected if names.startswith(ONE_OF))


def _default_text(value: object) -> str:
    if value in (None, []):
        return ""
    return f" (default {','.join(map(str, value)) if isinstance(value, list) else value})"
