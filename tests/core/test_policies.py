"""The policies and their registry."""

from __future__ import annotations

import pytest
from tests.core.calls import make_call

from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.errors import UnknownPolicyError
from autellix_backend.core.names import LIVE_POLICY_NAMES, POLICY_NAMES
from autellix_backend.core.policies import make_policy
from autellix_backend.core.statistics import ProgramStatistics, TokenCost
from autellix_backend.core.table import Program


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownPolicyError, match="'lifo' is unknown; the policies are atlas, atlas_dag, boost, fcfs, mlfq"
    ):
        make_policy("lifo")


@pytest.mark.parametrize(("name", "inherited"), [("atlas", 3.0), ("plas", 3.0), ("fcfs", 0.0), ("mlfq", 0.0)])
def test_program_policies_inherit_and_call_policies_do_not(name: str, inherited: float) -> None:
    assert make_policy(name).inherit(3.0) == inherited


def test_only_the_clairvoyant_policy_is_kept_from_engines() -> None:
    assert {name for name in POLICY_NAMES if make_policy(name).is_clairvoyant} == {"srpt"}
    assert set(LIVE_POLICY_NAMES) == set(POLICY_NAMES) - {"srpt"}


def test_the_exact_path_is_that_of_the_parents_where_they_are_known() -> None:
    policy = make_policy("atlas_dag")
    assert policy.inherit(9.0, [2.0, 5.0]) == 5.0
    assert policy.inherit(9.0, []) == 0.0
    assert policy.inherit(9.0, None) == 9.0
    assert make_policy("atlas").inherit(9.0, [2.0, 5.0]) == 9.0


@pytest.mark.parametrize(
    ("name", "expected_s", "size_s"),
    [
        ("srpt", None, 4.5),
        ("srpt", 1.5, 1.0),
        ("srpt", 0.25, 0.0),
        ("sjf", None, 0.0),
        ("sjf", 1.5, 1.5),
    ],
)
def test_a_size_is_the_expectation_or_what_was_attained(
    name: str, expected_s: float | None, size_s: float
) -> None:
    """Of the program, whose call has received half a second since, or of the call alone."""
    program = Program(program_id="p", created_s=0.0, service_s=4.0, expected_s=expected_s)
    call = make_call(expected_s=expected_s, service_s=0.5)
    assert make_policy(name).size(call, program) == size_s


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize(("service_s", "inherited_s", "ran_s"), [(5.0, 1.0, 2.0), (2.0, 4.0, 3.0)])
def test_a_policys_declared_sum_is_the_one_it_computes(
    name: str, service_s: float, inherited_s: float, ran_s: float
) -> None:
    """Shared tables add or take the maximum on the word of this."""
    policy = make_policy(name)
    expected = service_s + ran_s if policy.adds_service else max(service_s, inherited_s + ran_s)
    assert policy.complete(service_s, inherited_s, ran_s) == expected


@pytest.mark.parametrize(
    ("name", "key"),
    [("boost", 7.0), ("fcfs", 7.0), ("mlfq", 7.0), ("plas", 4.0), ("srpt", 2.0)],
)
def test_admission_follows_the_policy(name: str, key: float) -> None:
    """By arrival (without a boost), attained service or expected remainder."""
    program = Program(program_id="p", created_s=7.0, service_s=4.0, expected_s=2.0)
    boost = ProgramBoost(0.0, ProgramStatistics(), TokenCost(0.005))

    assert make_policy(name).place(program, boost).base == key


def test_admission_goes_by_attained_service_where_nothing_is_expected() -> None:
    program = Program(program_id="p", created_s=7.0, service_s=4.0)
    boost = ProgramBoost(0.0, ProgramStatistics(), TokenCost(0.005))

    assert make_policy("srpt").place(program, boost).base == 4.0


def test_boosted_programs_are_never_preempted_for_their_order() -> None:
    policy = make_policy("boost")
    assert (policy.preempts, policy.promotes, policy.boosts, policy.reorders) == (False, False, True, True)
