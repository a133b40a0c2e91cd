"""The link between a worker and its parent."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.gateway.workers.links import link_pair

from autellix_backend.gateway.workers.link import Link, LinkLostError

LONG_S = 60.0


async def test_answers_find_their_questions() -> None:
    async def later(content: int) -> int:
        await asyncio.sleep(0)
        return content * 10

    async with link_pair() as (left, right):
        right.handlers["now"] = lambda content: content + 1
        right.handlers["later"] = later
        answers = await asyncio.gather(
            left.ask("later", 1, LONG_S), left.ask("now", 1, LONG_S), left.ask("later", 2, LONG_S)
        )
    assert list(answers) == [10, 2, 20]


async def test_both_ends_ask() -> None:
    async with link_pair() as (left, right):
        left.handlers["name"] = right.handlers["name"] = lambda content: f"not {content}"
        assert await left.ask("name", "left", LONG_S) == "not left"
        assert await right.ask("name", "right", LONG_S) == "not right"


async def test_notices_come_in_their_order() -> None:
    taken: list[int] = []
    async with link_pair() as (left, right):
        right.handlers["number"] = taken.append
        right.handlers["all"] = lambda _nothing: list(taken)
        for number in range(100):
            left.tell("number", number)
        assert await left.ask("all", None, LONG_S) == list(range(100))


async def test_a_question_that_fails_is_told_so_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_content: object) -> None:
        raise ValueError("no")

    async def fail_later(_content: object) -> None:
        raise ValueError("not later either")

    async with link_pair() as (left, right):
        right.handlers |= {"now": fail, "later": fail_later, "well": lambda content: content}
        for kind in ("now", "later", "unknown"):
            with pytest.raises(LinkLostError):
                await left.ask(kind, None, LONG_S)
        assert await left.ask("well", "yes", LONG_S) == "yes"
    # An unknown kind is no fault: a worker may be asked before it has all its parts.
    assert len(caplog.records) == 2


async def test_a_silent_end_costs_its_time_and_no_more() -> None:
    async def never(_content: object) -> None:
        await asyncio.Event().wait()

    async with link_pair() as (left, right):
        right.handlers |= {"never": never, "well": lambda content: content}
        with pytest.raises(TimeoutError):
            await left.ask("never", None, 0.01)
        assert await left.ask("well", "yes", LONG_S) == "yes"


async def test_the_end_of_the_other_process_is_the_answer_to_what_was_asked() -> None:
    asked = asyncio.Event()

    async def never(_content: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with link_pair() as (left, right):
        right.handlers["never"] = never
        question = asyncio.create_task(left.ask("never", None, LONG_S))
        await asked.wait()
        right.close()
        with pytest.raises(LinkLostError):
            await question
        with pytest.raises(LinkLostError):
            await left.ask("never", None, LONG_S)
        left.tell("never", None)


async def test_a_link_that_is_not_open_says_nothing() -> None:
    left, right = socket.socketpair()
    with left, right:
        link = Link(left)
        link.tell("anything", None)
        with pytest.raises(LinkLostError):
            await link.ask("anything", None, LONG_S)
        link.close()
