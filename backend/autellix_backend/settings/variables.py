"""Unknown environment variables with our prefix: a misspelt one would be ignored silently."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

from autellix_backend.settings.base import API_KEY_VARIABLE, BASE_URL_VARIABLE, CACHE_DIR_VARIABLE
from autellix_backend.settings.load import ENV_PREFIX, SECTIONS, settings_of

OTHER_VARIABLES = (
    BASE_URL_VARIABLE,
    API_KEY_VARIABLE,
    CACHE_DIR_VARIABLE,
    # Of the client.
    *("AUTELLIX_DISABLED", "AUTELLIX_RAW_HTTP", "AUTELLIX_APPLICATION"),
    *("AUTELLIX_PROGRAM_ID", "AUTELLIX_PROGRAM_NAME", "AUTELLIX_SESSION_PROOF"),
    # Of builds and tests.
    *("AUTELLIX_ENGINE", "AUTELLIX_NATIVE", "AUTELLIX_BESIDE", "AUTELLIX_REAL_DRILLS"),
)
"""Known variables that are not settings."""


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each AUTELLIX_ variable that is not known."""
    environ = os.environ if environ is None else environ
    known = {_variable(section, key) for section in SECTIONS for key in settings_of(section)}
    known |= set(OTHER_VARIABLES)
    unknown = sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known)
    return [f"{name} is not a variable of Autellix{_nearest(name, known)}" for name in unknown]


def _variable(section: str, key: str) -> str:
    return f"{ENV_PREFIX}{section}_{key}".upper()


def _nearest(name: str, known: set[str]) -> str:
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f"; did you mean {nearest[0]}?" if nearest else ""
