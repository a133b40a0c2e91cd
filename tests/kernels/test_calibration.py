"""A table measured on the machine decides which strategy an `AUTO` job runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kernels.jobs import Case, Memory, copy, scattered

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.job import TABLE_CELLS, Direction, Strategy, SwapTable


def _table(native: Swapper, fastest: Strategy) -> SwapTable:
    """Return a table in which one strategy always wins."""
    return SwapTable(
        backend=native.backend,
        seconds=tuple(
            1.0 if cell % 2 == fastest - Strategy.COALESCED else 2.0 for cell in range(TABLE_CELLS)
        ),
    )


def _case(direction: Direction) -> Case:
    return scattered(is_far_together=True, strategy=Strategy.AUTO, direction=direction)


@pytest.mark.parametrize("fastest", [Strategy.COALESCED, Strategy.STAGED])
@pytest.mark.parametrize("direction", Direction)
def test_the_fastest_of_the_table_runs(native: Swapper, direction: Direction, fastest: Strategy) -> None:
    """Where nothing merges, the cheapest cell wins."""
    memory = Memory(_case(direction))
    expected = memory.expected()
    assert copy(native, memory.job(table=_table(native, fastest))).strategy is fastest
    assert memory.destination.raw == expected


def test_the_direction_is_looked_up(native: Swapper) -> None:
    """A table may choose one strategy for stores and another for loads."""
    stores, loads = _table(native, Strategy.STAGED), _table(native, Strategy.COALESCED)
    half = TABLE_CELLS // 2
    table = replace(stores, seconds=stores.seconds[:half] + loads.seconds[half:])
    chosen = [copy(native, Memory(_case(one)).job(table=table)).strategy for one in Direction]
    assert chosen == [Strategy.STAGED, Strategy.COALESCED]


def test_calibration_measures_every_cell(native: Swapper) -> None:
    """The table is full, of this back end, and fit for a job."""
    table = native.calibrate()
    assert table.backend == native.backend
    assert min(table.seconds) > 0
    memory = Memory(_case(Direction.STORE))
    expected = memory.expected()
    copy(native, memory.job(table=table))
    assert memory.destination.raw == expected


def test_auto_coalesces_without_a_table(native: Swapper) -> None:
    """A job that brings no measurements takes the strategy that never costs more copies."""
    assert copy(native, Memory(_case(Direction.LOAD)).job()).strategy is Strategy.COALESCED


def test_the_fallback_refuses_to_calibrate(fallback: Swapper) -> None:
    """It has one strategy, so there is nothing to choose."""
    with pytest.raises(SwapError) as raised:
        fallback.calibrate()
    assert (raised.value.code, raised.value.field) == (Code.BACKEND, "table")
