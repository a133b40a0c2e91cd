"""The tests of copies would see a library that drops, repeats or shifts a copy."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tests.kernels import stand_in
from tests.kernels.conftest import OPTIONS, ROOT
from tests.kernels.jobs import copy_and_compare, scattered

from autellix_backend.kernels.job import Direction, Strategy
from autellix_backend.kernels.native import SwapLibrary

FAULTS = {"drops a copy": 1, "makes one copy in the place of another": 2, "shifts a copy": 3}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(builder: ModuleType, tmp_path: Path, fault: str) -> None:
    """The comparison of the property tests fails for a build with the fault, whatever the strategy."""
    tools = builder.find_toolchain()
    if tools.cxx is None:
        pytest.skip("no C++ compiler")
    made = tmp_path / "faulty.so"
    extra = ["-O0", f"-DAX_PLANT_FAULT={FAULTS[fault]}"]
    stand_in.compile_once(builder.command(ROOT, "cpu", tools, made, extra), made)
    swapper = SwapLibrary(made).open("cpu", OPTIONS)
    for strategy in (Strategy.PER_PAGE, Strategy.COALESCED, Strategy.STAGED):
        for direction in Direction:
            # Layers apart in far memory: a staged job then makes several transfers through one slot.
            case = scattered(is_far_together=False, strategy=strategy, direction=direction)
            with pytest.raises(AssertionError):
                copy_and_compare(swapper, case)
    swapper.close()
