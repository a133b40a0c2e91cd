"""Builds the settings from a file, the environment and the command line.

Later sources win: defaults, preset, TOML file, environment, command line. A field has one dotted name
everywhere: `gateway.port` is `port` under `[gateway]` in the file and AUTELLIX_GATEWAY_PORT in the
environment.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from autellix_backend.environment import (
    API_KEY_VARIABLE,
    BASE_URL_VARIABLE,
    CACHE_DIR_VARIABLE,
    SettingsError,
)
from autellix_backend.settings import sections
from autellix_backend.settings.scheduler import scheduler_to_mapping
from autellix_backend.settings.sections import Settings

ENV_PREFIX = "AUTELLIX_"
SECTIONS: Mapping[str, type[Any]] = {
    "gateway": sections.GatewaySettings,
    "engine": sections.EngineSettings,
    "balancer": sections.BalancerSettings,
    "scheduler": sections.SchedulerSettings,
    "limits": sections.TenantLimits,
    "observe": sections.ObserveSettings,
    "store": sections.StoreSettings,
    "ray": sections.RaySettings,
}
PRESETS: Mapping[str, Mapping[str, object]] = {
    "paper": {
        "scheduler.policy": "atlas",
        "scheduler.preemption": "always",
        "balancer.name": "locality",
    }
}
"""Settings that go together, by the name of the preset and their own."""
OTHER_VARIABLES = (
    *(BASE_URL_VARIABLE, API_KEY_VARIABLE, CACHE_DIR_VARIABLE),
    # Of the client.
    *("AUTELLIX_DISABLED", "AUTELLIX_RAW_HTTP", "AUTELLIX_APPLICATION"),
    *("AUTELLIX_PROGRAM_ID", "AUTELLIX_PROGRAM_NAME", "AUTELLIX_SESSION_PROOF"),
    # Of builds and tests.
    *("AUTELLIX_ENGINE", "AUTELLIX_NATIVE", "AUTELLIX_BESIDE", "AUTELLIX_REAL_DRILLS"),
)
"""Known variables that are not settings."""


@dataclass(frozen=True, slots=True)
class RawValue:
    """A value as written, and its source, for messages."""

    value: object
    source: str


Layer = dict[str, RawValue]
"""Raw values by dotted field name (`gateway.port`)."""


@cache
def fields_of(section: str) -> Mapping[str, FieldInfo]:
    """Return what operators can set in a section: each field with its type, and its text as description."""
    declared: dict[str, FieldInfo] = SECTIONS[section].__pydantic_fields__
    return declared


def load_settings(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    command_line: Mapping[str, RawValue] | None = None,
) -> Settings:
    """Build the settings from all sources; `environ` defaults to the process environment.

    Raises:
        SettingsError: for unknown fields, values of the wrong type or out of range, or an unreadable file.
    """
    return build_settings(merged_layer(file=file, environ=environ, command_line=command_line))


def merged_layer(
    *,
    preset: str | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    command_line: Mapping[str, RawValue] | None = None,
) -> Layer:
    """Return each field's raw value from the source that wins; raises as load_settings() does.

    Args:
        preset: A name of `PRESETS`, whose values any other source overrides.
        file: The TOML file.
        environ: The environment; None for that of the process.
        command_line: The values of options.
    """
    environ = os.environ if environ is None else environ
    chosen = {} if preset is None else PRESETS[preset]
    layer = {name: RawValue(value, f"--preset {preset}") for name, value in chosen.items()}
    layer |= layer_from_file(file) if file is not None else {}
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
    """Read a TOML file with one table for each section; anything else in it is left to build_settings()."""
    layer: Layer = {}
    for section, table in read_toml(path, "--config").items():
        if section in SECTIONS and isinstance(table, dict):
            layer |= {f"{section}.{key}": RawValue(value, str(path)) for key, value in table.items()}
        else:
            layer[section] = RawValue(table, str(path))
    return layer


def layer_from_environment(environ: Mapping[str, str]) -> Layer:
    """Read AUTELLIX_<SECTION>_* of every section."""
    layer: Layer = {}
    for variable, text in environ.items():
        section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("_")
        if variable.startswith(ENV_PREFIX) and section in SECTIONS and key:
            layer[f"{section}.{key}"] = RawValue(text, variable)
    return layer


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each AUTELLIX_ variable that nothing reads: a misspelt one would be ignored.

    Those of a section are settings, which `build_settings` checks.
    """
    environ = os.environ if environ is None else environ
    known = [f"{ENV_PREFIX}{section}_{key}".upper() for section in SECTIONS for key in fields_of(section)]
    known += OTHER_VARIABLES
    settings = {raw.source for raw in layer_from_environment(environ).values()}
    unknown = sorted({name for name in environ if name.startswith(ENV_PREFIX)} - {*known, *settings})
    return [f"{name} is not a variable of Autellix{_nearest(name, known, cutoff=0.8)}" for name in unknown]


def build_settings(layer: Mapping[str, RawValue]) -> Settings:
    """Build the settings from one merged layer.

    Raises:
        SettingsError: with every problem of the layer.
    """
    values: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    problems: list[SettingsError] = []
    for name, raw in layer.items():
        section, _, key = name.partition(".")
        if section not in SECTIONS or not key:
            problems.append(
                SettingsError(name, "is not a table of settings", ", ".join(SECTIONS), raw.source)
            )
        elif key in fields_of(section):
            values[section][key] = raw.value
        else:
            problems.append(_unknown(name, raw.source))
    built: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        try:
            built[section] = kind(**values[section])
        except SettingsError as error:
            problems += [
                problem.at(layer[problem.field].source if problem.field in layer else None)
                for problem in error.all
            ]
    if problems:
        raise SettingsError.of_all(problems)
    return Settings(**built | {"scheduler": built["scheduler"].config()})


def settings_to_mapping(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the settings as plain JSON values, secrets hidden, for `GET config` and `config show`."""
    return {
        section: {name: values[name] for name in fields_of(section)}
        for section in SECTIONS
        for values in [_plain_values(section, getattr(settings, section))]
    }


def _plain_values(section: str, values: Any) -> dict[str, Any]:
    if section == "scheduler":
        return scheduler_to_mapping(values)
    plain: dict[str, Any] = TypeAdapter(SECTIONS[section]).dump_python(values, mode="json")
    return plain


def _unknown(name: str, source: str) -> SettingsError:
    section, _, key = name.partition(".")
    known = list(fields_of(section))
    hint = _nearest(key, known, prefix=f"{section}.")
    expected = f"one of {', '.join(known)}"
    return SettingsError(name, f"is unknown{hint}", expected, source)


def _nearest(name: str, known: Iterable[str], *, prefix: str = "", cutoff: float = 0.6) -> str:
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
