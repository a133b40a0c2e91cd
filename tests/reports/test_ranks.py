"""The snapshots of an engine's data-parallel ranks as one."""

from __future__ import annotations

from typing import Any

from tests.gateway.snapshots import snapshot, standing

from autellix_backend.reports.ranks import merge_ranks
from autellix_backend.reports.snapshot import (
    AdmissionSnapshot,
    BoostSnapshot,
    DemandSnapshot,
    EngineSnapshot,
    KvOffloadTotals,
    PresentPrograms,
)


def rank(number: int, *programs: str, **fields: Any) -> EngineSnapshot:
    calls = [standing(program, place=place, level=1) for place, program in enumerate(programs, start=1)]
    return snapshot(*calls, rank=number, **fields)


def test_one_rank_is_the_engine() -> None:
    alone = rank(0, "a")
    assert merge_ranks([alone]) is alone


def test_loads_are_added_up_and_calls_keep_the_place_in_their_rank() -> None:
    first = rank(
        0,
        "a",
        "b",
        step=70,
        mean_step_s=0.02,
        running=1,
        waiting=1,
        slots=3,
        kv_used_blocks=6,
        kv_total_blocks=12,
        level_calls=(2,),
        left_out=4,
    )
    second = rank(
        1,
        "c",
        step=90,
        mean_step_s=0.04,
        running=3,
        waiting=2,
        slots=3,
        kv_used_blocks=1,
        kv_total_blocks=12,
        is_block_short=True,
        level_calls=(1, 3),
    )
    both = merge_ranks([first, second])

    assert (both.running, both.waiting, both.slots, both.left_out) == (4, 3, 6, 4)
    assert (both.kv_used_blocks, both.kv_total_blocks, both.is_block_short) == (7, 24, True)
    assert (both.step, both.level_calls) == (90, (3, 3))
    assert both.mean_step_s is not None
    assert round(both.mean_step_s, 9) == 0.03
    assert [(call.program_id, call.place) for call in both.calls] == [("a", 1), ("b", 2), ("c", 1)]
    assert (both.kv_offload, both.admission, both.boost) == (None, None, None)


def test_what_only_some_ranks_have_counts() -> None:
    swapped = KvOffloadTotals(10, 1, 0.5, 4, 1, 0.25, 2, 0)
    weak, strong = BoostSnapshot(1.0, 0.5, 9.0), BoostSnapshot(2.0, 0.5, 3.0)
    both = merge_ranks(
        [
            rank(
                0,
                mean_step_s=None,
                kv_offload=swapped,
                admission=AdmissionSnapshot(3, 1, 500, 600),
                boost=weak,
                hold_s=9.0,
            ),
            rank(
                1,
                mean_step_s=None,
                kv_offload=swapped,
                admission=AdmissionSnapshot(1, 0, 50, 600),
                boost=strong,
                hold_s=14.0,
            ),
            rank(2, mean_step_s=None),
        ]
    )

    assert both.kv_offload == KvOffloadTotals(20, 2, 1.0, 8, 2, 0.5, 4, 0)
    assert both.admission == AdmissionSnapshot(4, 1, 550, 1200)
    assert (both.boost, both.mean_step_s, both.hold_s) == (strong, None, 14.0)


def test_what_waits_for_memory_adds_up() -> None:
    """Ends every 2 s and every 6 s are two ends in 3 s."""
    first, second = DemandSnapshot(300, 2, 2.0, ("a",)), DemandSnapshot(100, 1, 6.0, ("b", "c"))
    both = merge_ranks([rank(0, demand=first, spare_tokens=7), rank(1, demand=second, spare_tokens=3)])

    assert both.demand == DemandSnapshot(400, 3, 1.5, ("a", "b", "c"))
    assert both.spare_tokens == 10


def test_ends_and_idle_programs_may_be_unknown() -> None:
    unknown = DemandSnapshot(0, 0, 0.0, None)
    both = merge_ranks([rank(0, demand=unknown), rank(1, demand=unknown._replace(idle=("a",))), rank(2)])

    assert both.demand == DemandSnapshot(0, 0, 0.0, None)


def test_the_programs_of_ranks_without_calls_are_known_beside_those_with_them() -> None:
    listed = rank(0, "a", "b")
    light = rank(1, left_out=3, present=PresentPrograms(("c",), ("d",)))
    assert merge_ranks([listed, rank(1, "c")]).present is None

    assert merge_ranks([listed, light]).present == PresentPrograms(("c",), ("a", "b", "d"))
    listed = rank(0, "a", left_out=1)
    assert merge_ranks([listed, light]).present == PresentPrograms(("c",), ("a", "d"), is_complete=False)
