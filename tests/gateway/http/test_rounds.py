"""Rounds: bounded work in each round of the event loop, owners in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

from autellix_backend.gateway.http import rounds as module
from autellix_backend.gateway.http.rounds import Rounds


@pytest.fixture(autouse=True)
def long_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the tests' own charges use up a round, however slow the machine is."""
    monkeypatch.setattr(module, "ROUND_S", 3600.0)
    monkeypatch.setattr(module, "ALONE_ROUND_S", 4 * 3600.0)
    monkeypatch.setattr(module, "RENEWAL_S", 1e9)
    monkeypatch.setattr(module, "SHARE", 0.0)


class Played:
    """Actions that note in which round of the event loop they ran."""

    def __init__(self, cost_s: float) -> None:
        self.rounds = Rounds()
        self.ran: list[tuple[str, int]] = []
        self._cost_s = cost_s
        self._round = 0

    def run(self, owner: str) -> None:
        self.rounds.run(owner, partial(self._act, owner))

    def _act(self, owner: str) -> None:
        self.ran.append((owner, self._round))
        self.rounds.charge(self._cost_s)

    async def play(self, count: int) -> None:
        """Let rounds pass until so many actions have run."""
        while len(self.ran) < count:
            self._round += 1
            await asyncio.sleep(0)

    @property
    def owners(self) -> list[str]:
        return [owner for owner, _ in self.ran]


async def test_an_action_runs_at_once_where_there_is_time() -> None:
    played = Played(0.0)
    for _ in range(100):
        played.run("a")
    assert len(played.ran) == 100


async def test_the_time_of_a_round_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEWAL_S", 0.0)
    played = Played(3600.0)
    for _ in range(10):
        played.run("a")
    assert len(played.ran) == 10


async def test_a_round_runs_what_it_has_time_for() -> None:
    played = Played(1800.0)
    for _ in range(10):
        played.run("a")
    assert len(played.ran) == 2
    await played.play(10)
    assert max(Counter(number for _, number in played.ran).values()) == 2


async def test_an_owner_that_is_alone_has_longer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_S", -1.0)
    played = Played(1800.0)
    for _ in range(20):
        played.run("a")
    await played.play(20)
    assert max(Counter(number for _, number in played.ran).values()) == 8


async def test_an_owner_is_not_alone_for_a_while_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_S", 1e9)
    played = Played(1800.0)
    for owner in "a" * 10 + "b" + "a" * 10:
        played.run(owner)
    await played.play(21)
    assert max(Counter(number for _, number in played.ran).values()) == 2


@pytest.mark.parametrize(
    ("owners", "alone"),
    [("aaa", [False, False, True]), ("aba", [False, False, False]), ("abbb", [False, False, False, True])],
)
def test_who_is_alone(owners: str, alone: list[bool]) -> None:
    """Each of these comes 0.6 seconds after the one before."""
    solitude = module.Solitude()
    assert [solitude.is_alone(owner, 0.6 * number) for number, owner in enumerate(owners)] == alone


async def test_owners_take_turns_and_each_keeps_its_order() -> None:
    played = Played(3600.0)
    for owner in ("flood",) * 5 + ("quiet",) * 2:
        played.run(owner)
    await played.play(7)
    assert played.owners == ["flood", "flood", "quiet", "flood", "quiet", "flood", "flood"]


async def test_each_of_few_owners_has_an_action_in_every_round() -> None:
    """One whose actions cost more than a round has would else make each other owner wait for whole rounds."""
    played = Played(3600.0)
    owners = [f"owner {number}" for number in range(module.ROUND_OWNERS + 1)]
    played.run("first")
    for owner in owners * 2:
        played.run(owner)
    await played.play(1 + module.ROUND_OWNERS)
    assert played.ran[1:] == [(owner, 1) for owner in owners[: module.ROUND_OWNERS]]
    await played.play(1 + 2 * len(owners))
    assert max(Counter(number for _, number in played.ran).values()) == module.ROUND_OWNERS


async def test_an_action_does_not_overtake_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(3600.0)
    played.run("a")
    played.run("a")
    monkeypatch.setattr(module, "RENEWAL_S", 0.0)
    played.run("b")
    assert played.owners == ["a"]
    await played.play(3)
    assert played.owners == ["a", "a", "b"]


async def test_an_action_may_wait_again_for_a_later_round() -> None:
    rounds = Rounds()
    numbers: list[int] = []
    number = 0

    def act() -> None:
        numbers.append(number)
        if len(numbers) < 3:
            rounds.wait("a", act)

    rounds.run("a", act)
    while len(numbers) < 3:
        number += 1
        await asyncio.sleep(0)
    assert len(set(numbers)) == 3


async def test_a_long_action_learns_that_its_round_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    rounds = Rounds()

    def act() -> None:
        seen.append(rounds.is_over)

    rounds.run("a", act)
    monkeypatch.setattr(module, "ROUND_S", 1e-12)
    monkeypatch.setattr(module, "RENEWAL_S", 0.0)
    rounds.run("a", act)
    assert seen == [False, True]


async def test_longer_rounds_run_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where everything is slow, a flood would else wait for minutes."""
    monkeypatch.setattr(module, "ROUND_S", 1e-9)
    monkeypatch.setattr(module, "SHARE", 1e9)
    played = Played(1.0)
    for _ in range(100):
        played.run("a")
    await played.play(100)
    assert max(Counter(number for _, number in played.ran).values()) > 50


async def test_all_that_waits_can_be_run_at_once() -> None:
    played = Played(3600.0)
    for _ in range(10):
        played.run("a")
    played.rounds.flush()
    assert len(played.ran) == 10
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(played.ran) == 10


async def test_the_fault_of_one_action_stops_no_other() -> None:
    played = Played(3600.0)
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["message"]))

    def fail() -> None:
        raise ValueError("a fault")

    for _ in range(2):
        played.run("a")
    played.rounds.wait("a", fail)
    played.run("a")
    await played.play(3)
    assert len(faults) == 1
