"""Writes the folder of a model: whole or not at all, once, and checked by the SHA-256 of its files."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autellix_backend.engines.base import EngineError, StateFolderError

MARKER = "autellix-model.json"
"""The file that names the model of a folder and holds the checksums of its other files."""


class ModelFolderError(EngineError):
    """The folder of a model holds something else, which is left untouched."""

    def __init__(self, directory: Path, name: object, problem: str, expected: str) -> None:
        super().__init__(f"{name}: {directory} {problem}; expected {expected}")


def build_once(directory: Path, identity: Mapping[str, Any], write: Callable[[Path], None]) -> Path:
    """Return the folder of a model; `write` fills it if it is new or empty.

    Args:
        directory: The folder.
        identity: What distinguishes the model from others and from its other versions; `model` is its name.
        write: Writes the model's files into an empty folder.

    Raises:
        ModelFolderError: if the folder holds anything else, or if a file is damaged.
        StateFolderError: if it cannot be made.
    """
    if _is_built(directory, identity):
        return directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise _occupied(directory, identity)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise StateFolderError(directory.parent, error) from error
    try:
        write(staging)
        _seal(staging, identity)
        _publish(staging, directory, identity)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return directory


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _occupied(directory: Path, identity: Mapping[str, Any]) -> ModelFolderError:
    name = identity["model"]
    return ModelFolderError(
        directory, name, f"is not empty and holds no {name} of this version", "a new or empty folder"
    )


def _is_built(directory: Path, identity: Mapping[str, Any]) -> bool:
    try:
        found = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    checksums = found.pop("sha256", {}) if isinstance(found, dict) else {}
    if found != identity:
        return False
    for name, checksum in checksums.items():
        path = directory / name
        if not path.is_file() or sha256_of(path) != checksum:
            problem = f"is damaged: {name} is not the file that was written"
            raise ModelFolderError(directory, identity["model"], problem, "it to be deleted and made again")
    return True


def _seal(staging: Path, identity: Mapping[str, Any]) -> None:
    paths = sorted(staging.iterdir())
    for path in paths:
        path.chmod(0o644)
    marker = {**identity, "sha256": {path.name: sha256_of(path) for path in paths}}
    (staging / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
    staging.chmod(0o755)


def _publish(staging: Path, directory: Path, identity: Mapping[str, Any]) -> None:
    try:
        # Replaces an empty folder and fails on a full one, which another process wrote meanwhile.
        staging.rename(directory)
    except OSError as error:
        if not _is_built(directory, identity):
            raise _occupied(directory, identity) from error
