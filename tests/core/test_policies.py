"""The policies and their registry."""

from __future__ import annotations

import pytest

from autellix_backend.core.errors import UnknownPolicyError
from autellix_backend.core.policies import LIVE_POLICY_NAMES, POLICY_NAMES, make_policy


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_policy_carries_the_name_it_is_made_by(name: str) -> None:
    assert make_policy(name).name == name


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownPolicyError, match="'lifo' is unknown; the policies are atlas, atlas-dag, fcfs, hinted"
    ):
        make_policy("lifo")


@pytest.mark.parametrize(("name", "inherited"), [("atlas", 3.0), ("plas", 3.0), ("fcfs", 0.0), ("mlfq", 0.0)])
def test_program_policies_inherit_and_call_policies_do_not(name: str, inherited: float) -> None:
    assert make_policy(name).inherit(3.0) == inherited


@pytest.mark.parametrize(("name", "service"), [("atlas", 5.0), ("plas", 6.0), ("fcfs", 5.0), ("mlfq", 5.0)])
def test_a_completed_call_changes_its_program(name: str, service: float) -> None:
    # The program stands at 5 when a call that inherited 2 completes after 1.
    assert make_policy(name).complete(5.0, 2.0, 1.0) == service


def test_only_the_clairvoyant_policy_is_kept_from_engines() -> None:
    assert set(POLICY_NAMES) - set(LIVE_POLICY_NAMES) == {"srpt"}


def test_the_exact_path_is_that_of_the_parents_where_they_are_known() -> None:
    policy = make_policy("atlas-dag")
    assert policy.inherit(9.0, [2.0, 5.0]) == 5.0
    assert policy.inherit(9.0, []) == 0.0
    assert policy.inherit(9.0, None) == 9.0
    assert make_policy("atlas").inherit(9.0, [2.0, 5.0]) == 9.0


def test_without_a_hint_a_program_is_as_large_as_what_it_had() -> None:
    assert make_policy("hinted").size(None, 4.0) == 4.0
    assert make_policy("hinted").size(1.5, 4.0) == 1.5
    assert make_policy("sjf").size(None, 4.0) == 0.0


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize(("service_s", "inherited_s", "ran_s"), [(5.0, 1.0, 2.0), (2.0, 4.0, 3.0)])
def test_what_a_policy_says_of_its_sum_is_what_it_does(
    name: str, service_s: float, inherited_s: float, ran_s: float
) -> None:
    """Shared tables add or take the maximum on the word of this."""
    policy = make_policy(name)
    expected = service_s + ran_s if policy.adds_service else max(service_s, inherited_s + ran_s)
    assert policy.complete(service_s, inherited_s, ran_s) == expected
