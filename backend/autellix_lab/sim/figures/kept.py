"""Keeps the runs of finished sweeps in a folder, so that a repeated command skips them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from autellix_lab.sim.experiment import Point, Sweep, SweepResult


def take(folder: Path, sweep: Sweep) -> SweepResult | None:
    """Return the kept runs of an equal sweep, or None if there are none.

    Raises:
        ValueError: the file of the sweep cannot be used; the message names it.
        OSError: it cannot be read.
    """
    path = _path(folder, sweep)
    if not path.is_file():
        return None
    try:
        return SweepResult([Point(**item) for item in json.loads(path.read_text(encoding="utf-8"))])
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path}: expected a list of kept runs: {error}; delete it to run them again"
        ) from error


def keep(folder: Path, sweep: Sweep, result: SweepResult) -> None:
    """Write the runs of a finished sweep.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, sweep)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(
        json.dumps([dataclasses.asdict(point) for point in result.points]), encoding="utf-8"
    )
    # A reader never sees half a file.
    unfinished.replace(path)


def _path(folder: Path, sweep: Sweep) -> Path:
    """Return the file of a sweep: named by all that determines its runs, but for the simulator itself."""
    return folder / f"{hashlib.sha256(repr(sweep).encode()).hexdigest()[:24]}.json"
