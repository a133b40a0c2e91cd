"""The error of settings, and the environment variables that are not settings.

No other module of the backend reads variables of ours from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from autellix_backend.errors import CommandError

CACHE_DIR_VARIABLE = "AUTELLIX_CACHE_DIR"
BASE_URL_VARIABLE = "AUTELLIX_BASE_URL"
API_KEY_VARIABLE = "AUTELLIX_API_KEY"
REPORT_SECRET_VARIABLE = "AUTELLIX_ENGINE_REPORT_SECRET"
"""The variable of `engine.report_secret`, which engines read as well: their arguments are logged."""
MIN_SECRET_CHARACTERS = 16
DEFAULT_BASE_URL = "http://127.0.0.1:8000"


class SettingsError(CommandError, ValueError):
    """One unusable setting, or several; each names the field, its source, and what was expected."""

    def __init__(
        self,
        field_name: str,
        problem: str,
        expected: str | None = None,
        source: str | None = None,
        *,
        others: Sequence[SettingsError] = (),
    ) -> None:
        origin = f" (from {source})" if source else ""
        tail = f"; expected {expected}" if expected else ""
        self.line = f"{field_name}{origin}: {problem}{tail}"
        self.all = (self, *others)
        """Each problem, this one first."""
        super().__init__("\n".join(error.line for error in self.all))
        self.field = field_name
        self.problem = problem
        self.expected = expected
        self.source = source

    @classmethod
    def of_all(cls, errors: Sequence[SettingsError]) -> SettingsError:
        """Return one error for all of several."""
        first, *others = errors
        return cls(first.field, first.problem, first.expected, first.source, others=others)

    def at(self, source: str | None) -> SettingsError:
        """Return the same problem with the source of the value."""
        return SettingsError(self.field, self.problem, self.expected, source)


def default_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder for generated models, logs and sockets: AUTELLIX_CACHE_DIR or ~/.cache/autellix."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get(CACHE_DIR_VARIABLE):
        return Path(chosen).expanduser()
    root = environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "autellix"


def child_environment(defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process: ours, with `defaults` for variables that are not set."""
    return {**defaults, **os.environ}


def client_environment(environ: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """Return the gateway's address and API key for commands that call a gateway: the first of several."""
    environ = os.environ if environ is None else environ
    addresses = map(str.strip, environ.get(BASE_URL_VARIABLE, "").split(","))
    return next(filter(None, addresses), DEFAULT_BASE_URL), environ.get(API_KEY_VARIABLE) or None


def report_secret(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the secret that an engine shares with its gateways; None without one.

    Raises:
        SettingsError: if it is too short.
    """
    secret = (os.environ if environ is None else environ).get(REPORT_SECRET_VARIABLE) or None
    if secret is not None and len(secret) < MIN_SECRET_CHARACTERS:
        expected = f"{MIN_SECRET_CHARACTERS} characters or more"
        raise SettingsError("engine.report_secret", "cannot be used", expected, REPORT_SECRET_VARIABLE)
    return secret
