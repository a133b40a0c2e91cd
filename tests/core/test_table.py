"""The process table."""

from __future__ import annotations

import pytest

from autellix_backend.core.errors import DuplicateCallError, UnknownProgramError
from autellix_backend.core.policies import make_policy
from autellix_backend.core.table import ProcessTable, Program

PLAS = make_policy("plas")


def complete(table: ProcessTable, call_id: str, now: float) -> Program:
    return table.complete("p", call_id, now, policy=PLAS, inherited_service_s=0.0, service_s=2.0, wait_s=1.0)


def test_an_entry_appears_once() -> None:
    table = ProcessTable()

    assert table.ensure("p", 1.0) is table.ensure("p", 2.0)
    assert table.ensure("p", 3.0).created_s == 1.0
    assert [program.program_id for program in table.programs()] == ["p"]
    assert len(table) == 1


def test_an_absent_entry_is_none_or_an_error() -> None:
    table = ProcessTable()

    assert table.get("p") is None
    with pytest.raises(UnknownProgramError, match=r"^program 'p' has no entry in the process table$"):
        table["p"]


def test_merging_keeps_the_larger_values() -> None:
    table = ProcessTable()
    table.ensure("p", 0.0)

    table.merge("p", 3.0, 5.0, 7.0)
    table.merge("p", 2.0, 6.0, 8.0)
    program = table.merge("p")

    assert (program.service_s, program.wait_s, program.work) == (3.0, 6.0, 8.0)


def test_a_completed_call_is_charged() -> None:
    table = ProcessTable()
    table.begin("p", "a", 0.0)

    program = complete(table, "a", 5.0)

    assert (program.service_s, program.wait_s, program.last_completion_s) == (2.0, 1.0, 5.0)
    assert program.active_calls == {}


def test_an_ended_program_continues_with_a_new_call() -> None:
    table = ProcessTable()
    table.begin("p", "a", 0.0)
    table.end("p", 1.0)
    table.begin("p", "b", 1.0)
    complete(table, "a", 2.0)
    complete(table, "b", 3.0)

    assert "p" in table
    table.check()


def test_expiry_counts_from_the_last_activity() -> None:
    table = ProcessTable()
    table.begin("p", "a", 0.0)
    complete(table, "a", 5.0)
    table.ensure("q", 8.0)
    table.begin("r", "b", 0.0)

    assert table.expire(11.0, 5.0) == ["p"]
    assert table.expire(20.0, 5.0) == ["q"]
    assert table.expire(1e9, 5.0) == []


def test_the_response_time_of_programs_is_measured() -> None:
    table = ProcessTable()
    table.begin("p", "a", 0.0)
    complete(table, "a", 5.0)
    table.end("p", 6.0)
    table.begin("q", "b", 100.0)

    assert table.statistics.live == 1
    assert table.statistics.response_s == 5.0 / 2


def test_a_program_whose_calls_wait_for_their_client_is_not_live() -> None:
    """The time of its pauses is no part of its response time; its entry stays."""
    table = ProcessTable()
    table.begin("p", "a", 0.0)
    table.begin("p", "b", 0.0)
    table.pause("p", 2.0)
    table.check()
    assert table.statistics.live == 1
    complete(table, "b", 3.0)
    table.check()
    assert (table.statistics.live, table.expire(1e9, 5.0)) == (0, [])
    table.resume("p", 100.0)
    table.check()
    complete(table, "a", 102.0)
    table.end("p", 102.0)
    table.begin("q", "c", 102.0)
    assert table.statistics.response_s == 5.0 / 2


def test_an_end_without_a_time_is_not_measured() -> None:
    table = ProcessTable()
    table.begin("p", "a", 0.0)
    complete(table, "a", 4.0)
    spread = table.statistics.sizes_of("").value
    table["p"].work = 1e9
    table.end("p")
    table.begin("p", "a", 4.0)

    assert (table.statistics.sizes_of("").value, table.statistics.response_s) == (spread, 4.0)


def test_the_work_of_completed_calls_adds_up() -> None:
    table = ProcessTable()
    for call_id, work in (("a", 100.0), ("b", 20.0)):
        table.begin("p", call_id, 0.0)
        table.complete(
            "p", call_id, 1.0, policy=PLAS, inherited_service_s=0.0, service_s=1.0, wait_s=0.0, work=work
        )

    assert table["p"].work == 120.0


def test_only_the_stale_programs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of very many programs is not searched for the few that are stale."""
    table = ProcessTable()
    for number in range(100):
        table.begin(f"p{number}", "a", float(number))
        table.complete(
            f"p{number}", "a", float(number), policy=PLAS, inherited_service_s=0, service_s=1, wait_s=0
        )
    table.begin("p0", "b", 100.0)
    looked: list[str] = []
    activity = vars(Program)["last_activity_s"]

    def noted(program: Program) -> float:
        looked.append(program.program_id)
        seen_s: float = activity.__get__(program)
        return seen_s

    monkeypatch.setattr(Program, "last_activity_s", property(noted))
    assert table.expire(102.0, 100.0) == ["p1", "p2"]
    assert looked == ["p1", "p2", "p3"]
    table.check()


def test_a_call_begins_once() -> None:
    table = ProcessTable()
    table.begin("p", "a", 0.0)

    with pytest.raises(DuplicateCallError):
        table.begin("p", "a", 1.0)


def test_a_moved_call_takes_its_sums_along() -> None:
    table = ProcessTable()
    for call_id in ("a", "b"):
        table.begin("p", call_id, 0.0)
        complete(table, call_id, 1.0)
    table.merge("p", work=9.0)
    table.ensure("q", 2.0)

    charges = {"path_id": "a", "services_s": [2.0], "wait_s": 1.0, "work": 4.0}
    table.move("p", "q", policy=PLAS, **charges)  # type: ignore[arg-type]

    assert (table["p"].service_s, table["p"].wait_s, table["p"].work) == (2.0, 1.0, 5.0)
    assert (table["q"].service_s, table["q"].wait_s, table["q"].work) == (2.0, 1.0, 4.0)
    with pytest.raises(UnknownProgramError):
        table.move("p", "nowhere", policy=PLAS, **charges)  # type: ignore[arg-type]


def test_a_moved_call_leaves_the_longest_other_path() -> None:
    """Where calls have parents the path is known; else a maximum stays, for nobody knows what it was of."""
    for policy, left_s in ((make_policy("atlas_dag"), 3.0), (make_policy("atlas"), 5.0)):
        table = ProcessTable()
        for call_id, service_s in (("a", 5.0), ("b", 3.0)):
            table.begin("p", call_id, 0.0)
            table.complete(
                "p", call_id, 1.0, policy=policy, inherited_service_s=0.0, service_s=service_s, wait_s=0.0
            )
        table.ensure("q", 2.0)

        table.move("p", "q", policy=policy, path_id="a", services_s=[5.0], wait_s=0.0, work=0.0)

        assert (table["p"].service_s, table["q"].service_s) == (left_s, 5.0)
        assert table.parent_ends_s("q", ["a"]) == ([5.0] if policy.reads_parents else None)


def test_further_service_goes_to_the_call_s_path() -> None:
    """A step that ends after its call has left; nobody misses the service of a program that has left too."""
    dag = make_policy("atlas_dag")
    table = ProcessTable()
    table.begin("p", "a", 0.0)
    table.complete("p", "a", 1.0, policy=dag, inherited_service_s=1.0, service_s=2.0, wait_s=0.0)
    table["p"].expected_s = 1.5

    assert table.add_service("p", "a", policy=dag, inherited_service_s=3.0, service_s=1.0) is table["p"]
    assert (table["p"].service_s, table["p"].expected_s) == (4.0, 0.5)
    assert table.parent_ends_s("p", ["a"]) == [4.0]
    assert table.add_service("p", "unknown", policy=dag, inherited_service_s=0.0, service_s=0.5) is table["p"]
    assert table.parent_ends_s("p", ["a"]) == [4.0]
    assert table.add_service("gone", "a", policy=dag, inherited_service_s=0.0, service_s=1.0) is None
