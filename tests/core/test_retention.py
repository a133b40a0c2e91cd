"""The order of eviction: chunks of no program, then of the longest idle one, from the end of its context."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from autellix_backend.core import retention as retention_module
from autellix_backend.core.retention import IDLE, MAX_OWNERS, Retention


@pytest.fixture
def retention() -> Iterator[Retention[bytes]]:
    """An empty one, checked at the end."""
    one: Retention[bytes] = Retention()
    yield one
    one.check()


def call(
    retention: Retention[bytes], program: str, keys: str, *, is_last: bool = False, leaves: bool = True
) -> None:
    """Let a call of a program come, use chunks (a letter each), and leave."""
    retention.begin_call(program)
    names = [letter.encode() for letter in keys]
    known = set(retention.worst_first())
    for name in names:
        if name not in known:
            retention.add(name)
    retention.use(names, program)
    if leaves:
        retention.end_call(program, is_last=is_last)


def order(retention: Retention[bytes]) -> str:
    """All chunks, the first to go first."""
    return b"".join(retention.worst_first()).decode()


def test_a_context_is_evicted_from_its_end(retention: Retention[bytes]) -> None:
    """The front of a context is of use without its end, not the other way round."""
    call(retention, "p", "abc")
    call(retention, "p", "abcd")
    assert order(retention) == "dcba"


def test_the_longest_idle_program_is_evicted_first(retention: Retention[bytes]) -> None:
    """A program's place is that of its latest call's end."""
    call(retention, "p", "ab")
    call(retention, "q", "cd")
    call(retention, "p", "ab")
    assert order(retention) == "dcba"


def test_ended_programs_are_evicted_before_idle_ones(retention: Retention[bytes]) -> None:
    """However recently they ended."""
    call(retention, "waits", "ab")
    call(retention, "ends", "cd", is_last=True)
    assert order(retention) == "dcba"


def test_a_program_ends_with_its_last_call_in_the_engine(retention: Retention[bytes]) -> None:
    """A final call beside another does not end the program early."""
    call(retention, "p", "ab", leaves=False)
    call(retention, "p", "ac", is_last=True)
    call(retention, "q", "d")
    assert order(retention) == "dcba"
    retention.end_call("p", is_last=False)
    assert order(retention) == "cbad"


def test_programs_that_are_said_to_have_ended_are_evicted_first(retention: Retention[bytes]) -> None:
    """One with a call ends with it; one that is unknown changes nothing."""
    call(retention, "waits", "ab")
    call(retention, "ends", "cd")
    call(retention, "runs", "ef", leaves=False)
    for program in ("ends", "runs", "unknown"):
        retention.end_program(program)
    assert order(retention) == "dcbafe"
    retention.end_call("runs", is_last=False)
    assert order(retention) == "dcfeba"


def test_a_tool_call_does_not_cost_a_running_program_its_context(retention: Retention[bytes]) -> None:
    """A program with a call in the engine goes last, although others used their chunks later."""
    call(retention, "runs", "ab", leaves=False)
    call(retention, "idles", "cd")
    assert order(retention) == "dcba"
    retention.end_call("runs", is_last=False)


def test_programs_that_admission_counts_on_are_evicted_last(retention: Retention[bytes]) -> None:
    """The one that it counts on for the shortest time before the others, whether they have calls or not."""
    for program, keys in (("first", "ab"), ("runs", "cd"), ("second", "ef")):
        call(retention, program, keys, leaves=False)
    for _ in range(2):
        for program in ("first", "second", "unknown"):
            retention.keep(program, is_kept=True)
    assert order(retention) == "dcfeba"
    retention.end_call("second", is_last=False)
    assert order(retention) == "dcfeba"
    retention.begin_call("second")
    retention.keep("first", is_kept=False)
    assert order(retention) == "dcbafe"
    retention.end_program("second")
    assert order(retention) == "dcbafe"
    retention.end_call("second", is_last=False)
    assert order(retention) == "fedcba"


def test_a_history_that_was_left_behind_is_evicted_first(retention: Retention[bytes]) -> None:
    """What the latest calls of a program have not used, unless others use it; without any use, all stays."""
    call(retention, "other", "sx")
    call(retention, "p", "sabc")
    retention.keep("p", is_kept=True)
    call(retention, "p", "sd")
    assert order(retention) == "cbaxds"
    call(retention, "p", "")
    assert order(retention) == "cbaxds"
    call(retention, "p", "sab")
    assert order(retention) == "cdxbas"


def test_calls_of_one_time_leave_nothing_of_each_other_behind(retention: Retention[bytes]) -> None:
    call(retention, "p", "ab", leaves=False)
    call(retention, "p", "cd", leaves=False)
    retention.end_call("p", is_last=False)
    retention.end_call("p", is_last=False)
    call(retention, "q", "e", is_last=True)
    assert order(retention) == "edcba"


def test_a_shared_front_stays_with_its_best_program(retention: Retention[bytes]) -> None:
    """What another program still uses does not go with the one that ended."""
    call(retention, "p", "sab")
    call(retention, "q", "scd", is_last=True)
    assert order(retention) == "dcbas"


def test_a_shared_front_returns_to_the_remaining_program(retention: Retention[bytes]) -> None:
    """When the later program ends, the shared front is the earlier one's again."""
    call(retention, "p", "stab")
    call(retention, "q", "stcd")
    call(retention, "q", "stcd", is_last=True)
    assert order(retention) == "dcbats"
    assert [len(retention.kept(name)) for name in ("p", "q", "unknown")] == [4, 0, 0]


def test_an_evicted_chunk_is_dropped(retention: Retention[bytes]) -> None:
    """Its program goes on with the others."""
    call(retention, "p", "abc")
    retention.discard(b"c")
    retention.begin_call("p")
    retention.use([b"a", b"b", b"c"], "p")
    assert order(retention) == "ba"
    retention.clear()
    assert order(retention) == ""


def test_too_many_idle_programs_end(retention: Retention[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of programs has a bound."""
    monkeypatch.setattr(retention_module, "MAX_IDLE_PROGRAMS", 2)
    for name in "pqr":
        call(retention, name, name)
    call(retention, "q", "q")
    assert order(retention) == "prq"
    assert len(retention._ranks[IDLE]) == 2


def test_owners_have_a_bound(retention: Retention[bytes]) -> None:
    """A chunk that thousands used remembers the latest few."""
    for number in range(3 * MAX_OWNERS):
        call(retention, f"p{number}", "s")
    assert order(retention) == "s"
    assert len(retention._chunks[b"s"].owners) == MAX_OWNERS


def test_a_chunk_that_many_have_used_since_may_be_left_behind(retention: Retention[bytes]) -> None:
    call(retention, "first", "sa")
    retention.keep("first", is_kept=True)
    for number in range(3 * MAX_OWNERS):
        call(retention, f"p{number}", "s")
    call(retention, "first", "b")

    assert order(retention) == "asb"


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_keep_the_order(seed: int) -> None:
    """After any history each chunk has one place, that of its best program."""
    generator = random.Random(seed)
    retention: Retention[bytes] = Retention()
    calls: list[str] = []
    live: set[bytes] = set()
    for _ in range(400):
        action = generator.choice(["begin", "begin", "use", "use", "use", "end", "evict", "hold"])
        if action == "begin":
            program = f"p{generator.randrange(2 * MAX_OWNERS)}"
            retention.begin_call(program)
            calls.append(program)
        elif action == "hold" and calls:
            retention.keep(generator.choice(calls), is_kept=generator.random() < 0.6)
        elif action == "use" and calls:
            keys = [bytes([generator.randrange(24)]) for _ in range(4)]
            for key in dict.fromkeys(keys):
                if key not in live:
                    retention.add(key)
                    live.add(key)
            retention.use(keys, generator.choice(calls))
        elif action == "end" and calls:
            program = calls.pop(generator.randrange(len(calls)))
            retention.end_call(program, is_last=generator.random() < 0.4)
        elif action == "evict" and live:
            worst = next(retention.worst_first())
            retention.discard(worst)
            live.discard(worst)
        retention.check()
        walked = list(retention.worst_first())
        assert sorted(walked) == sorted(live)
        places = [_place(retention, key) for key in walked]
        assert places == sorted(places)


def _place(retention: Retention[bytes], key: bytes) -> tuple[int, int]:
    best = retention._best_owner(key)
    return (-1, 0) if best is None else retention._programs[best].place
