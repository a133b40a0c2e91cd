"""Command-line options of settings: names, help and defaults come from the settings themselves."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from autellix_backend.settings import (
    Layer,
    RawValue,
    Setting,
    Settings,
    all_settings,
    build_settings,
    merged_layer,
    settings_to_mapping,
)

PREFIX = "setting:"
OPTIONS = {declared.option: field for field, declared in all_settings().items() if declared.option}
"""Dotted field by option."""

_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


def add_setting_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declare `--config` and the named options, all when none is named."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    declared, defaults = all_settings(), settings_to_mapping(Settings())
    for name in names or OPTIONS:
        section, _, key = OPTIONS[name].partition(".")
        _add_option(parser, name, declared[OPTIONS[name]], defaults[section][key])


def _add_option(parser: argparse.ArgumentParser, name: str, declared: Setting, default: object) -> None:
    text = _LINK.sub(r"\1", declared.text).replace("`", "")
    parser.add_argument(
        name,
        dest=PREFIX + OPTIONS[name],
        action="append" if declared.is_repeated else "store",
        nargs="?" if declared.implied else None,
        const=declared.implied,
        metavar=name[2:].upper().replace("-", "_"),
        help=f"{text}{_default_text(default)}".replace("%", "%%"),
    )


def settings_from_args(args: argparse.Namespace, extra: dict[str, RawValue] | None = None) -> Settings:
    """Build the settings from file, environment and options, in rising rank.

    Raises:
        SettingsError: naming the field and the option, variable or file it came from.
    """
    return build_settings(layer_from_args(args, extra))


def layer_from_args(args: argparse.Namespace, extra: dict[str, RawValue] | None = None) -> Layer:
    """Return the raw values of file, environment and options; raises as settings_from_args()."""
    declared = all_settings()
    values = {
        field: RawValue(value, declared[field].option or field)
        for key, value in vars(args).items()
        if key.startswith(PREFIX) and value is not None
        for field in [key.removeprefix(PREFIX)]
    }
    return merged_layer(file=args.config, command_line=values | (extra or {}))


def _default_text(value: object) -> str:
    if value in (None, []):
        return ""
    return f" (default {','.join(map(str, value)) if isinstance(value, list) else value})"
