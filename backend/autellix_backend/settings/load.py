"""Builds the tree from a file, the environment and the command line.

Later sources win: defaults, TOML file, environment, command line. A field has one dotted name everywhere:
`gateway.port` is `port` under `[gateway]` in the file and AUTELLIX_GATEWAY_PORT in the environment.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.settings.balancer import BalancerSettings
from autellix_backend.settings.base import CACHE_DIR_VARIABLE, SettingsError, listed
from autellix_backend.settings.convert import Given, convert
from autellix_backend.settings.limits import TenantLimits
from autellix_backend.settings.ray import RaySettings
from autellix_backend.settings.store import StoreSettings
from autellix_backend.settings.tree import EngineSettings, GatewaySettings, ObserveSettings, Settings

ENV_PREFIX = "AUTELLIX_"
SECRETS = ("gateway.token_secret", "engine.api_key")
"""Fields whose values are never shown."""
HIDDEN = "(hidden)"

SECTIONS: dict[str, type[Any]] = {
    "gateway": GatewaySettings,
    "engine": EngineSettings,
    "scheduler": SchedulerConfig,
    "limits": TenantLimits,
    "observe": ObserveSettings,
    "store": StoreSettings,
    "balancer": BalancerSettings,
    "ray": RaySettings,
}

Layer = dict[str, Given]
"""Given values by dotted field name (`gateway.port`)."""


def load_settings(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    command_line: Mapping[str, Given] | None = None,
) -> Settings:
    """Build the tree from all sources; `environ` defaults to the process environment.

    Raises:
        SettingsError: for an unknown field, a value of the wrong type or out of range, or an unreadable file.
    """
    return build_settings(merged_layer(file=file, environ=environ, command_line=command_line))


def merged_layer(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    command_line: Mapping[str, Given] | None = None,
) -> Layer:
    """Return what all sources give, each field by the source that wins; raises as load_settings() does."""
    environ = os.environ if environ is None else environ
    layer = layer_from_file(file) if file is not None else {}
    layer |= layer_from_environment(environ)
    layer |= dict(command_line or {})
    return layer


def layer_from_file(path: Path) -> Layer:
    """Read a TOML file with one table for each section."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("--config", f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError("--config", f"{path} is not TOML: {error}") from error
    layer: Layer = {}
    for section, table in document.items():
        if section not in SECTIONS or not isinstance(table, dict):
            raise SettingsError(section, "is no table of settings", listed(SECTIONS), str(path))
        layer |= {f"{section}.{key}": Given(value, str(path)) for key, value in table.items()}
    return layer


def layer_from_environment(environ: Mapping[str, str]) -> Layer:
    """Read AUTELLIX_<SECTION>_* of every section, and AUTELLIX_CACHE_DIR."""
    layer: Layer = {}
    if cache_dir := environ.get(CACHE_DIR_VARIABLE):
        layer["engine.state_dir"] = Given(cache_dir, CACHE_DIR_VARIABLE)
    for variable, text in environ.items():
        for section in SECTIONS:
            prefix = f"{ENV_PREFIX}{section.upper()}_"
            if variable.startswith(prefix):
                layer[f"{section}.{variable.removeprefix(prefix).lower()}"] = Given(text, variable)
    return layer


def build_settings(layer: Mapping[str, Given]) -> Settings:
    """Build the tree from one merged layer."""
    values: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for name, given in layer.items():
        section, _, key = name.partition(".")
        hint = _field_types(SECTIONS[section]).get(key)
        if hint is None:
            known = listed(_field_types(SECTIONS[section]))
            raise SettingsError(name, "is unknown", f"one of {known}", given.source)
        values[section][key] = convert(name, given, hint)
    return Settings(**{section: _construct(section, values[section], layer) for section in SECTIONS})


def settings_to_mapping(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the tree as plain JSON values, secrets hidden, for `GET config` and `config show`."""
    sections = {section: dataclasses.asdict(getattr(settings, section)) for section in SECTIONS}
    # It spells infinity and its defaults in its own way.
    sections["scheduler"] = dict(settings.scheduler.to_mapping())
    # It may hold a password.
    sections["store"]["url"] = settings.store.shown_url
    return {
        section: {key: _shown(f"{section}.{key}", value) for key, value in values.items()}
        for section, values in sections.items()
    }


def _shown(name: str, value: object) -> object:
    if name in SECRETS and value is not None:
        return HIDDEN
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _construct(section: str, values: dict[str, object], layer: Mapping[str, Given]) -> Any:
    try:
        return SECTIONS[section](**values)
    except SettingsError as error:
        given = layer.get(error.field)
        raise SettingsError(
            error.field, error.problem, error.expected, given.source if given else None
        ) from error
    except ValueError as error:
        # The core's configuration raises plain ValueErrors; their first word is the field.
        key, _, problem = str(error).partition(" ")
        name = f"{section}.{key}"
        raise SettingsError(name, problem, source=layer[name].source if name in layer else None) from error


def _field_types(section: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    return {item.name: hints[item.name] for item in dataclasses.fields(section)}
