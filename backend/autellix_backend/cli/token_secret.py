"""The secret of session tokens that `autellix serve` makes and keeps, so that tokens survive a restart."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import replace

from autellix_backend.cli.config_check import NO_SHARED_SECRET
from autellix_backend.cli.notes import note
from autellix_backend.settings import Settings, SettingsError

SECRET_NAME = "token-secret"
SECRET_BYTES = 32


def with_token_secret(settings: Settings) -> Settings:
    """Return the settings with a token secret that survives restarts."""
    if settings.gateway.token_secret is not None:
        return settings
    path = settings.engine.cache_dir / SECRET_NAME
    if settings.store.is_shared:
        note(f"{NO_SHARED_SECRET}; this gateway keeps its own in {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(FileExistsError),
            os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
        ):
            file.write(secrets.token_hex(SECRET_BYTES))
        gateway = replace(settings.gateway, token_secret=path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError, SettingsError) as error:
        note(f"session tokens will not outlive this process: {error}")
        return settings
    return replace(settings, gateway=gateway)
