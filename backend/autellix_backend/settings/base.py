"""What every part of the settings shares: the error, checks, and where things lie by default.

This is the only backend package that reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

CACHE_DIR_VARIABLE = "AUTELLIX_CACHE_DIR"
BASE_URL_VARIABLE = "AUTELLIX_BASE_URL"
API_KEY_VARIABLE = "AUTELLIX_API_KEY"
DEFAULT_BASE_URL = "http://127.0.0.1:8000"


class SettingsError(ValueError):
    """A setting that cannot be used; names the field, where it came from, and what is expected."""

    def __init__(
        self, field_name: str, problem: str, expected: str | None = None, source: str | None = None
    ) -> None:
        origin = f" (from {source})" if source else ""
        tail = f"; expected {expected}" if expected else ""
        super().__init__(f"{field_name}{origin}: {problem}{tail}")
        self.field = field_name
        self.problem = problem
        self.expected = expected


def default_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder for generated models, logs and sockets: AUTELLIX_CACHE_DIR or ~/.cache/autellix."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get(CACHE_DIR_VARIABLE):
        return Path(chosen).expanduser()
    root = environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "autellix"


def child_environment(defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process: ours, with `defaults` for what the user did not set."""
    return {**defaults, **os.environ}


def listed(names: Iterable[str]) -> str:
    """Return names as a message lists them."""
    return ", ".join(names)


def check(holds: bool, name: str, problem: str, expected: str) -> None:
    """Raise a SettingsError of the field `name` unless the condition holds."""
    if not holds:
        raise SettingsError(name, problem, expected)


def check_positive(section: str, owner: object, name: str, *, zero_allowed: bool = False) -> None:
    """Check that a number of `owner` is above zero, or at least zero."""
    value = getattr(owner, name)
    holds = value >= 0 if zero_allowed else value > 0
    bound = "zero or more" if zero_allowed else "more than zero"
    check(holds, f"{section}.{name}", f"is {value}", f"a number {bound}")


def check_url(name: str, url: str) -> None:
    """Check that the setting `name` has the address of a server."""
    is_http = url.startswith(("http://", "https://"))
    check(is_http, name, f"is {url!r}", "an http:// or https:// address")


def client_environment(environ: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """Return the address of the gateway that commands ask, and the key that they show it."""
    environ = os.environ if environ is None else environ
    return environ.get(BASE_URL_VARIABLE) or DEFAULT_BASE_URL, environ.get(API_KEY_VARIABLE) or None
