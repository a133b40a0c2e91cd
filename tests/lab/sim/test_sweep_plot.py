"""The picture of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_lab.sim.experiment import Point, SweepResult
from autellix_lab.sim.sweep_plot import PANELS, write_sweep_plot


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_sweep_is_drawn(tmp_path: Path, seeds: int) -> None:
    """Also of a single seed, which has no interval."""
    pytest.importorskip("matplotlib")
    points = [
        Point(case, load, seed, 1.0, dict.fromkeys(PANELS.values(), 0.01 * load * (seed + 1)))
        for load in (0.5, 1.0)
        for case in ("fcfs", "plas")
        for seed in range(seeds)
    ]
    path = tmp_path / "sweep.png"

    write_sweep_plot(path, SweepResult(points), "title")

    assert path.read_bytes().startswith(b"\x89PNG")
