"""The state of a race: whose turn it is, what is answered, and how earlier heats went."""

from __future__ import annotations

import json
from statistics import mean

import pytest
from tests.lab.demo.race.race_turns import PROGRAMS, results, turn

from autellix_lab.demo.race.race import Race


class Clock:
    """A clock that stands until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def race(clock: Clock) -> Race:
    return Race(("fcfs", "boost"), clock=clock)


def play(race: Race, policy: str, s_per_call: float, *, load: str = "saturation") -> None:
    take = race.begin(turn(policy, load=load))
    for result in results(s_per_call=s_per_call):
        take(result)


def mean_latency_s(s_per_call: float) -> float:
    return mean(s_per_call * len(program.calls) for program in PROGRAMS)


def test_before_the_first_heat_there_is_news_only(race: Race) -> None:
    race.tell("starting the fcfs backend")
    state = race.state(0, {})

    assert (state["heat"], state["programs"], state["lanes"]) == (0, [], {})
    assert state["news"] == "starting the fcfs backend"


def test_a_turn_began_before_its_earliest_answer(race: Race, clock: Clock) -> None:
    take = race.begin(turn("fcfs"))
    assert race.state(0, {})["lanes"]["fcfs"]["elapsed_s"] == 0.0
    first, second, *_ = results(s_per_call=2.0)
    clock.now = 110.0
    take(first)
    # The second came a second late.
    clock.now = 113.0
    take(second)

    assert (first.finish_s, second.finish_s) == (2.0, 4.0)
    assert race.state(0, {})["lanes"]["fcfs"]["elapsed_s"] == 5.0


def test_only_calls_that_the_page_does_not_know_are_sent(race: Race) -> None:
    play(race, "fcfs", 1.0)
    calls = len(results(s_per_call=1.0))

    assert len(race.state(0, {})["lanes"]["fcfs"]["calls"]) == calls
    assert len(race.state(1, {"fcfs": calls - 1})["lanes"]["fcfs"]["calls"]) == 1
    # What it knows of another heat counts for nothing.
    assert len(race.state(7, {"fcfs": calls - 1})["lanes"]["fcfs"]["calls"]) == calls


def test_the_lanes_of_a_heat_stay_until_the_next(race: Race) -> None:
    play(race, "fcfs", 2.0)
    play(race, "boost", 1.0)
    assert list(race.state(0, {})["lanes"]) == ["fcfs", "boost"]
    play(race, "fcfs", 1.0, load="below saturation")
    state = race.state(1, {})

    assert list(state["lanes"]) == ["fcfs"]
    assert (state["heat"], state["title"]) == (2, "round 1, below saturation")
    assert state["heats"][0] == {
        "title": "round 1, saturation",
        "mean_s": {
            "fcfs": pytest.approx(mean_latency_s(2.0)),
            "boost": pytest.approx(mean_latency_s(1.0)),
        },
    }


def test_a_turn_is_over_when_its_last_call_is_answered(race: Race) -> None:
    take = race.begin(turn("fcfs"))
    *most, last = results(s_per_call=1.0)
    for result in most:
        take(result)
    assert race.state(0, {})["lanes"]["fcfs"]["is_playing"]
    take(last)

    assert not race.state(0, {})["lanes"]["fcfs"]["is_playing"]


def test_the_end_closes_the_last_turn(race: Race) -> None:
    take = race.begin(turn("fcfs"))
    for result in results(s_per_call=2.0, programs=2):
        take(result)
    race.end()
    state = race.state(0, {})

    assert (state["is_over"], state["lanes"]["fcfs"]["is_playing"]) == (True, False)
    assert state["heats"][0]["mean_s"] == {"fcfs": mean(2.0 * len(program.calls) for program in PROGRAMS[:2])}
    assert json.loads(json.dumps(state))["policies"] == ["fcfs", "boost"]


def test_a_turn_whose_calls_were_all_lost_has_no_mean(race: Race) -> None:
    race.begin(turn("fcfs"))
    race.end()

    assert race.state(0, {})["heats"] == []
