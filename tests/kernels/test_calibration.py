"""A table measured on the machine decides which strategy an `AUTO` job runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kernels.jobs import Case, Memory, scattered

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.job import TABLE_CELLS, Direction, Strategy, SwapTable


def _table(swapper: Swapper, fastest: Strategy) -> SwapTable:
    """Return a table in which one strategy always wins."""
    return SwapTable(
        backend=swapper.backend,
        seconds=tuple(1.0 if cell % 3 == fastest else 2.0 for cell in range(TABLE_CELLS)),
    )


def _case(direction: Direction) -> Case:
    return scattered(is_far_together=True, strategy=Strategy.AUTO, direction=direction)


@pytest.mark.parametrize("fastest", [Strategy.PER_PAGE, Strategy.COALESCED, Strategy.STAGED])
@pytest.mark.parametrize("direction", Direction)
def test_the_fastest_of_the_table_runs(swapper: Swapper, direction: Direction, fastest: Strategy) -> None:
    """Where nothing merges, the cheapest cell wins."""
    memory = Memory(_case(direction))
    expected = memory.expected()
    assert swapper.copy(memory.job(table=_table(swapper, fastest))).strategy is fastest
    assert memory.destination.raw == expected


def test_the_direction_is_looked_up(swapper: Swapper) -> None:
    """A table may choose one strategy for stores and another for loads."""
    stores, loads = _table(swapper, Strategy.STAGED), _table(swapper, Strategy.PER_PAGE)
    half = TABLE_CELLS // 2
    table = replace(stores, seconds=stores.seconds[:half] + loads.seconds[half:])
    chosen = [swapper.copy(Memory(_case(one)).job(table=table)).strategy for one in Direction]
    assert chosen == [Strategy.STAGED, Strategy.PER_PAGE]


def test_calibration_measures_every_cell(swapper: Swapper) -> None:
    """The table is full, of this back end, and fit for a job."""
    table = swapper.calibrate()
    assert table.backend == swapper.backend
    assert min(table.seconds) > 0
    memory = Memory(_case(Direction.STORE))
    expected = memory.expected()
    swapper.copy(memory.job(table=table))
    assert memory.destination.raw == expected
