"""The policies and their registry."""

from __future__ import annotations

import pytest

from autellix_backend.core.errors import UnknownPolicyError
from autellix_backend.core.policies import POLICY_NAMES, make_policy


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_policy_carries_the_name_it_is_made_by(name: str) -> None:
    assert make_policy(name).name == name


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownPolicyError, match="'sjf' is unknown; the policies are atlas, fcfs, mlfq, plas"
    ):
        make_policy("sjf")


@pytest.mark.parametrize(("name", "inherited"), [("atlas", 3.0), ("plas", 3.0), ("fcfs", 0.0), ("mlfq", 0.0)])
def test_program_policies_inherit_and_call_policies_do_not(name: str, inherited: float) -> None:
    assert make_policy(name).inherit(3.0) == inherited


@pytest.mark.parametrize(("name", "service"), [("atlas", 5.0), ("plas", 6.0), ("fcfs", 5.0), ("mlfq", 5.0)])
def test_a_completed_call_changes_its_program(name: str, service: float) -> None:
    # The program stands at 5 when a call that inherited 2 completes after 1.
    assert make_policy(name).complete(5.0, 2.0, 1.0) == service
