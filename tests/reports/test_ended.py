"""The ends of programs that an engine still has to receive."""

from __future__ import annotations

from autellix_backend.reports.ended import MAX_ENDED, EndedPrograms


def test_an_end_goes_with_calls_until_the_engine_has_it() -> None:
    ended = EndedPrograms()
    assert ended.on_sent("p") == ()
    assert ended.on_program_ended("p")
    assert not ended.on_program_ended("p")
    assert ended.on_sent("q") == ("p",)
    assert ended.on_sent("r") == ("p",), "whether the call before arrived is not known yet"
    ended.on_received(("p",))
    assert ended.on_sent("q") == ()


def test_an_engine_does_not_hear_of_programs_that_it_does_not_know() -> None:
    ended = EndedPrograms()
    ended.on_program_ended("elsewhere")
    ended.on_sent("last")
    ended.on_last_received("last")
    ended.on_program_ended("last")
    assert ended.on_sent("p") == ()


def test_a_program_that_returns_has_not_ended() -> None:
    ended = EndedPrograms()
    ended.on_sent("p")
    ended.on_program_ended("p")
    assert ended.on_sent("p") == ()


def test_the_oldest_ends_are_dropped_and_a_restart_drops_all() -> None:
    ended = EndedPrograms()
    for number in range(MAX_ENDED + 1):
        ended.on_sent(str(number))
    for number in range(MAX_ENDED + 1):
        ended.on_program_ended(str(number))
    assert ended.on_sent("p") == tuple(map(str, range(1, MAX_ENDED + 1)))
    ended.clear()
    assert ended.on_sent("p") == ()
