"""Reads the compose file, its variables and environment files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([-?])([^}]*))?\}")


class MissingVariableError(Exception):
    """The file needs a variable that nobody has set."""


def environment_file(text: str) -> dict[str, str]:
    """Return the variables of an environment file."""
    found = {}
    for line in text.splitlines():
        if line[:1].isalpha():
            name, _, value = line.partition("=")
            found[name] = value[1:-1] if value[:1] in "'\"" else value
    return found


def read_compose(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return a compose file with the variables in their places.

    Raises:
        MissingVariableError: one is required, and not set.
    """
    return dict(_interpolated(yaml.safe_load(path.read_text()), variables))


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _interpolated(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [_interpolated(one, variables) for one in value]
    return VARIABLE.sub(lambda found: _value(found, variables), value) if isinstance(value, str) else value


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    name, kind, text = found.groups()
    if name is None:
        return "$"
    value = variables.get(name, "")
    if value or kind is None:
        return value
    if kind == "?":
        raise MissingVariableError(f"{name}: {text}")
    return str(text)
