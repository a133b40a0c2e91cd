"""The recorded programs of a study: families, held-out sources, and the gaps that are played."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from autellix_lab.sim.recorded import (
    FAMILIES,
    FITS,
    HELD_OUT,
    MIXED,
    SOURCES,
    fit_note,
    load_programs,
)
from autellix_lab.workload.fit import GapRule
from autellix_lab.workload.trace import CallTrace, ProgramTrace
from autellix_lab.workload.trace_files import write_traces


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two programs of each source, whose second call waits 90 s."""
    (tmp_path / "public").mkdir()
    first = CallTrace(id=0, parents=(), thread="0", prefill_tokens=100, decode_tokens=50)
    calls = (
        first,
        CallTrace(id=1, parents=(0,), thread="0", prefill_tokens=1, decode_tokens=1, gap_before_s=90.0),
    )
    for source in {name for names in SOURCES.values() for name in names}:
        programs = [ProgramTrace(source=source, program_id=f"{source}{n}", calls=calls) for n in range(2)]
        write_traces(tmp_path / "public" / f"{source}.jsonl.gz", programs)
    return tmp_path


def test_a_workload_is_a_family_or_a_held_out_source(data: Path) -> None:
    found = {name: {program.source for program in load_programs(data, name)} for name in SOURCES}
    assert found == {name: set(files) for name, files in SOURCES.items()}
    assert set(HELD_OUT).isdisjoint(FAMILIES)


def test_mixed_has_equal_shares(data: Path) -> None:
    """As many programs as the smallest of its families has."""
    mixed = [program.source for program in load_programs(data, "mixed")]
    shares = [sum(source in FAMILIES[name] for source in mixed) for name in MIXED]
    assert shares == [2, 2, 2]


@pytest.mark.parametrize(("cap_s", "gap_s"), [(0.0, 0.0), (30.0, 30.0), (math.inf, 90.0)])
def test_gaps_are_a_choice(data: Path, cap_s: float, gap_s: float) -> None:
    fits = {name: replace(fit, gap_rule=GapRule(cap_s)) for name, fit in FITS.items()}
    programs = load_programs(data, "coding", fits)
    assert {program.calls[1].gap_before_s for program in programs} == {gap_s}
    assert str(GapRule(cap_s)) in fit_note("coding", fits)


def test_families_play_without_gaps_unless_told(data: Path) -> None:
    assert {program.calls[1].gap_before_s for program in load_programs(data, "coding")} == {0.0}
