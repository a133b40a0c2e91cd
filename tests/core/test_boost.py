"""The boosted keys of programs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.core.boost import (
    LEADS,
    LEAST_WORK,
    MAX_CLASSES,
    OUTPUT_WEIGHT,
    RENEWAL_S,
    ProgramBoost,
    work_of,
)
from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.statistics import ProgramStatistics, TokenCost
from autellix_backend.core.table import Program

TOKEN_S = 0.001


def make_boost(response_s: float = 100.0, spread: float = 1.0, share: float = 0.7) -> ProgramBoost:
    """Return a boost at full strength unless the spread is less."""
    statistics = ProgramStatistics()
    statistics.sizes_of("").known = spread
    statistics.on_live(0.0)
    statistics.on_idle(response_s)
    statistics.on_live(response_s)
    boost = ProgramBoost(share, statistics, TokenCost(TOKEN_S))
    boost.renew(response_s)
    return boost


def program(created_s: float = 0.0, **facts: Any) -> Program:
    return Program(program_id="p", created_s=created_s, **facts)


def test_without_strength_the_key_is_the_arrival() -> None:
    for boost in (make_boost(share=0.0), make_boost(spread=0.5), make_boost(response_s=0.0)):
        assert boost.strength_s == 0.0
        assert boost.key_s(program(5.0, work=1e6)) == 5.0
        assert boost.key_s(program(5.0)) == 5.0


@pytest.mark.parametrize(
    ("spread", "strength_s"), [(0.2, 0.0), (0.5, 0.0), (0.75, 35.0), (1.0, 70.0), (3.0, 70.0)]
)
def test_the_strength_follows_the_spread_of_sizes(spread: float, strength_s: float) -> None:
    assert make_boost(spread=spread).strength_s == pytest.approx(strength_s)


def test_the_key_is_the_arrival_less_the_boost_of_the_work() -> None:
    boost = make_boost()
    seconds = 4096 * TOKEN_S

    expected = 50.0 + 70.0 * math.log(1 - math.exp(-seconds / 70.0))
    assert boost.key_s(program(50.0, work=4096.0)) == pytest.approx(expected)


def test_programs_that_nothing_identified_keep_the_order_of_their_arrival() -> None:
    boost = make_boost()

    for facts in ({"work": 4096.0}, {"waiting_work": 1e6}, {"expected_work": 600.0}, {}):
        assert boost.key_s(program(50.0, is_identified=False, **facts)) == 50.0
        assert boost.key_s(program(50.0, **facts)) < 50.0


def test_they_count_as_having_arrived_as_much_earlier_as_the_lower_quartile_of_calls_of_others() -> None:
    boost, unknown = make_boost(), program(150.0, is_identified=False)
    calls = [program(float(created_s), work=4096.0) for created_s in range(LEADS)]
    boost.on_arrival(program(work=4096.0), 150.0)
    boost.renew(200.0)
    assert boost.key_s(unknown) == 150.0, "nobody is compared to anybody yet"

    boost.on_arrival(unknown, 150.0)
    for call in (program(work=4096.0), *calls):
        boost.on_arrival(call, 150.0)
    boost.renew(200.0 + RENEWAL_S)
    earlier = [call for call in calls if boost.key_s(call) < boost.key_s(unknown)]
    assert len(earlier) == pytest.approx(LEADS * 3 / 4, abs=1), "old calls that have left count no more"
    # All of them move together, and those of other tenants by what is known there.
    assert boost.place(unknown).base == 150.0
    assert boost.key_s(program(150.0, is_identified=False, tenant="other")) == 150.0


def test_every_program_has_some_work() -> None:
    boost = make_boost()

    assert boost.key_s(program()) == boost.key_s(program(work=LEAST_WORK)) < boost.key_s(program(work=600.0))


def test_prompts_that_wait_are_known_work() -> None:
    boost = make_boost()

    assert boost.key_s(program(work=4000.0, waiting_work=96.0)) == boost.key_s(program(work=4096.0))


def test_when_somebody_looks_a_boost_up_does_not_change_it() -> None:
    """A snapshot may; a record of the events would not know of it."""
    looked_up, other = make_boost(), make_boost()
    unknown = program(is_identified=False)
    for boost in (looked_up, other):
        boost.on_arrival(unknown, 100.0)
        for number in range(LEADS):
            boost.on_arrival(program(100.0, work=4096.0), 100.0 + number / 1000)
        boost.renew(101.0)
        if boost is looked_up:
            boost.key_s(unknown)
        boost.on_arrival(program(-1000.0, work=4096.0), 101.0)
    assert looked_up.key_s(unknown) == other.key_s(unknown) < 0.0


def hinted(boost: ProgramBoost, work: float = 0.0, tenant: str = "", **hints: Any) -> float:
    """Return the key of a program, the first call of which has these hints."""
    found = program(50.0, work=work, tenant=tenant, hints=Hints(**hints))
    boost.on_arrival(found, 50.0)
    return boost.key_s(found)


@pytest.mark.parametrize(
    ("work", "tokens", "counted"), [(0.0, 256.0, 8192.0), (8192.0, 256.0, 16384.0), (0.0, 1e12, 32e12)]
)
def test_tokens_that_a_client_expects_count_beside_what_was_done(
    work: float, tokens: float, counted: float
) -> None:
    boost = make_boost()

    assert hinted(boost, work, expected_tokens=tokens) == boost.key_s(program(50.0, work=counted))


def test_expected_calls_count_as_the_finished_ones_of_their_class_and_tenant() -> None:
    boost = make_boost()
    new_s = boost.key_s(program(50.0))
    assert hinted(boost, class_name="chat", expected_calls=4) == new_s, "nothing is known of calls yet"

    for work in (1024.0, 3072.0):
        boost.on_finished(program(hints=Hints(class_name="chat")), work)
        boost.on_finished(program(hints=Hints(class_name="chat"), tenant="other"), 1e6)

    of_four_s = boost.key_s(program(50.0, work=8192.0))
    assert hinted(boost, class_name="chat", expected_calls=4) == of_four_s
    assert hinted(boost, class_name="chat", expected_calls=2, work=4096.0) == of_four_s
    assert hinted(boost, class_name="tree", expected_calls=4) == new_s
    # The tokens say more.
    assert hinted(boost, class_name="chat", expected_calls=400, expected_tokens=256) == of_four_s


def test_classes_of_calls_are_bounded() -> None:
    boost = make_boost()
    hinted(boost, expected_calls=1)
    for number in range(MAX_CLASSES):
        boost.on_finished(program(hints=Hints(class_name="kept")), 8192.0)
        boost.on_finished(program(hints=Hints(class_name=f"other-{number}")), 8192.0)

    known_s, new_s = boost.key_s(program(50.0, work=8192.0)), boost.key_s(program(50.0))
    assert hinted(boost, class_name="kept", expected_calls=1) == known_s
    assert hinted(boost, class_name="other-0", expected_calls=1) == new_s


def test_a_program_that_outgrows_what_its_client_expects_counts_by_what_it_did() -> None:
    boost = make_boost()
    found = program(50.0, hints=Hints(expected_tokens=20.0))
    boost.on_arrival(found, 50.0)
    small_s = boost.key_s(found)
    found.work, found.hints = 8192.0, NO_HINTS
    boost.on_arrival(found, 51.0)

    assert small_s < boost.key_s(found) == boost.key_s(program(50.0, work=8192.0))


def test_a_work_of_almost_nothing_has_a_finite_boost() -> None:
    boost = make_boost(response_s=1e30)

    assert math.isfinite(boost.key_s(program()))


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e5))
def test_the_boost_falls_with_work_and_never_delays(one: float, other: float, response_s: float) -> None:
    boost = make_boost(response_s)
    low, high = (boost.key_s(program(1e6, work=work)) for work in sorted((one, other)))

    assert low <= high <= 1e6


@given(st.floats(0, 1e9), st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_program_is_passed_only_by_those_that_arrive_within_the_largest_boost(
    work: float, arrival_s: float, response_s: float
) -> None:
    boost = make_boost(response_s)
    strength_s = boost.strength_s
    largest_s = -strength_s * math.log(-math.expm1(-LEAST_WORK * TOKEN_S / strength_s)) if strength_s else 0.0

    later = program(arrival_s + largest_s * (1 + 1e-9) + 1e-6)
    assert boost.key_s(later) >= boost.key_s(program(arrival_s, work=work)) - 1e-6


def test_keys_follow_strength_and_cost_and_places_do_not() -> None:
    boost = make_boost()
    statistics, cost = boost._statistics, boost._token_cost
    place, before, epoch = boost.place(program()), boost.key_s(program()), boost.epoch

    statistics.on_idle(120.0)
    statistics.on_live(120.0)
    boost.renew(120.0)
    assert boost.strength_s == pytest.approx(84.0)
    stronger = boost.key_s(program())
    assert stronger < before
    cost.observe(1.0, 2 * TOKEN_S)
    boost.renew(120.0 + RENEWAL_S / 2)
    assert boost.key_s(program()) == stronger
    boost.renew(120.0 + RENEWAL_S)
    assert stronger < boost.key_s(program())
    assert (boost.place(program()), boost.epoch) == (place, epoch + 2)


def test_the_sizes_of_a_tenant_move_no_other_tenants_keys() -> None:
    boost = make_boost()
    theirs = boost._statistics.sizes_of("other")
    theirs.known = 0.75
    boost.renew(200.0)
    before = [boost.key_s(program(50.0, work=4096.0, tenant=tenant)) for tenant in ("", "other")]
    theirs.known = 0.0
    boost.renew(300.0)

    assert boost.strength_s == pytest.approx(70.0)
    assert boost.key_s(program(50.0, work=4096.0)) == before[0]
    assert boost.key_s(program(50.0, work=4096.0, tenant="other")) == 50.0 != before[1]
    # Of one that is forgotten, order of arrival is kept.
    assert boost.key_s(program(50.0, work=4096.0, tenant="unknown")) == 50.0


def test_without_strength_no_cost_moves_the_keys() -> None:
    boost = make_boost(share=0.0)
    boost._token_cost.observe(1.0, 5 * TOKEN_S)
    boost.renew(300.0)

    assert boost.key_s(program(5.0, work=4096.0)) == 5.0


def test_an_output_token_weighs_many_prompt_tokens() -> None:
    assert work_of(100, 3) == 100 + 3 * OUTPUT_WEIGHT
