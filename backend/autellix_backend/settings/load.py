"""Builds the settings from a file, the environment and the command line.

Later sources win: defaults, TOML file, environment, command line. A field has one dotted name everywhere:
`gateway.port` is `port` under `[gateway]` in the file and AUTELLIX_GATEWAY_PORT in the environment.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.settings.base import CACHE_DIR_VARIABLE, SettingsError
from autellix_backend.settings.fields import RawValue, Rule, convert, rules_of, types_of
from autellix_backend.settings.scheduler import scheduler_to_mapping
from autellix_backend.settings.sections import SchedulerSettings, Settings

ENV_PREFIX = "AUTELLIX_"
SECTIONS: dict[str, type[Any]] = typing.get_type_hints(Settings)

Layer = dict[str, RawValue]
"""Raw values by dotted field name (`gateway.port`)."""


def declaration_of(section: str) -> type[Any]:
    """Return the class that declares the settings of a section."""
    kind = SECTIONS[section]
    return SchedulerSettings if kind is SchedulerConfig else kind


def settings_of(section: str) -> list[str]:
    """Return the names of a section's settings."""
    return list(types_of(declaration_of(section)))


def load_settings(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    command_line: Mapping[str, RawValue] | None = None,
) -> Settings:
    """Build the settings from all sources; `environ` defaults to the process environment.

    Raises:
        SettingsError: for an unknown field, a value of the wrong type or out of range, or an unreadable file.
    """
    return build_settings(merged_layer(file=file, environ=environ, command_line=command_line))


def merged_layer(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    command_line: Mapping[str, RawValue] | None = None,
) -> Layer:
    """Return each field's raw value from the source that wins; raises as load_settings() does."""
    environ = os.environ if environ is None else environ
    layer = layer_from_file(file) if file is not None else {}
    return layer | layer_from_environment(environ) | dict(command_line or {})


def read_toml(path: Path, name: str) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        SettingsError: of the field `name`, if it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(name, f"{path} is not TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(name, f"cannot read {path}: {error}") from error


def layer_from_file(path: Path) -> Layer:
    """Read a TOML file with one table for each section."""
    layer: Layer = {}
    for section, table in read_toml(path, "--config").items():
        if section not in SECTIONS or not isinstance(table, dict):
            raise SettingsError(section, "is not a table of settings", ", ".join(SECTIONS), str(path))
        layer |= {f"{section}.{key}": RawValue(value, str(path)) for key, value in table.items()}
    return layer


def layer_from_environment(environ: Mapping[str, str]) -> Layer:
    """Read AUTELLIX_<SECTION>_* of every section, and AUTELLIX_CACHE_DIR."""
    layer: Layer = {}
    if cache_dir := environ.get(CACHE_DIR_VARIABLE):
        layer["engine.state_dir"] = RawValue(cache_dir, CACHE_DIR_VARIABLE)
    for variable, text in environ.items():
        section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("_")
        if variable.startswith(ENV_PREFIX) and section in SECTIONS and key:
            layer[f"{section}.{key}"] = RawValue(text, variable)
    return layer


def build_settings(layer: Mapping[str, RawValue]) -> Settings:
    """Build the settings from one merged layer."""
    values: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for name, raw in layer.items():
        section, _, key = name.partition(".")
        if key not in settings_of(section):
            nearest = difflib.get_close_matches(key, settings_of(section), n=1)
            problem = f"is unknown; did you mean {section}.{nearest[0]}?" if nearest else "is unknown"
            raise SettingsError(name, problem, f"one of {', '.join(settings_of(section))}", raw.source)
        values[section][key] = convert(name, raw, types_of(SECTIONS[section])[key])
    sections = {section: _build_section(section, values[section], layer) for section in SECTIONS}
    return Settings(**sections)


def settings_to_mapping(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the settings as plain JSON values, secrets hidden, for `GET config` and `config show`."""
    return {section: _plain_values(section, getattr(settings, section)) for section in SECTIONS}


def _plain_values(section: str, values: Any) -> dict[str, object]:
    rules = rules_of(declaration_of(section))
    plain = scheduler_to_mapping(values) if isinstance(values, SchedulerConfig) else {}
    return {
        name: plain[name] if plain else _shown(getattr(values, name), rules.get(name))
        for name in settings_of(section)
    }


def _shown(value: Any, rule: Rule | None) -> object:
    if value is not None and rule is not None and rule.shown is not None:
        if isinstance(value, tuple) and not rule.shows_whole:
            return [rule.shown(item) for item in value]
        return rule.shown(value)
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _build_section(section: str, values: dict[str, object], layer: Mapping[str, RawValue]) -> Any:
    try:
        return SECTIONS[section](**values)
    except SettingsError as error:
        raise SettingsError(
            error.field, error.problem, error.expected, _source(layer, error.field)
        ) from error
    except ValueError as error:
        # The core's configuration raises plain ValueErrors; their first word is the field.
        key, _, problem = str(error).partition(" ")
        name = f"{section}.{key}"
        raise SettingsError(name, problem, source=_source(layer, name)) from error


def _source(layer: Mapping[str, RawValue], name: str) -> str | None:
    return layer[name].source if name in layer else None
