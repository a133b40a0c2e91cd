"""The parts of KV memory: they add up to all of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.snapshots import engine, snapshot

from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.gateway.engines.kv_memory import KvMemory, kv_memory, sum_of
from autellix_backend.reports.snapshot import AdmissionSnapshot, DemandSnapshot


def memory(**fields: Any) -> KvMemory:
    found = kv_memory(engine(snapshot(kv_total_blocks=100, kv_used_blocks=40, kv_block_tokens=10, **fields)))
    assert found is not None
    return found


def parts(found: KvMemory) -> tuple[int, int, int]:
    return (found.held_tokens, found.kept_tokens, found.reserve_tokens)


@pytest.mark.parametrize(
    ("working_set", "capacity", "expected"),
    [
        (700, 900, (400, 300, 100)),
        # A working set below what calls hold keeps nothing more.
        (300, 900, (400, 0, 100)),
        # Neither part is larger than what the others leave.
        (2000, 900, (400, 600, 0)),
        (400, 0, (400, 0, 600)),
        (400, 2000, (400, 0, 0)),
    ],
)
def test_what_is_held_kept_and_reserved(working_set: int, capacity: int, expected: tuple[int, ...]) -> None:
    found = memory(
        admission=AdmissionSnapshot(3, 2, working_set, capacity), demand=DemandSnapshot(550, 2, 1.0, ())
    )

    assert (found.total_tokens, found.waiting_tokens) == (1000, 550)
    assert parts(found) == expected


def test_without_admission_nothing_is_kept_or_reserved() -> None:
    assert parts(memory()) == (400, 0, 0)
    assert memory().waiting_tokens == 0


def test_an_engine_without_a_snapshot_has_none() -> None:
    assert kv_memory(engine()) is None


def test_without_snapshots_it_is_what_the_gateway_admits_by() -> None:
    estimate = MemoryReport(
        capacity_tokens=1000,
        active_tokens=1200,
        active_programs=2,
        inactive_tokens=300,
        inactive_calls=1,
        between_ends_s=1.0,
        known=frozenset(),
        inactive=frozenset(),
    )
    found = kv_memory(engine(estimated_memory=estimate))

    assert found is not None
    assert (found.total_tokens, *parts(found), found.waiting_tokens) == (1000, 0, 1000, 0, 300)


def test_several_engines_are_one() -> None:
    found = sum_of([memory(), memory()])

    assert found is not None
    assert (found.total_tokens, found.held_tokens) == (2000, 800)
    assert sum_of([]) is None
