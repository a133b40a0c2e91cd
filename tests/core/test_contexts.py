"""The memory of a program's contexts, against the prompts themselves."""

# Hypothesis is skipped by the type checker, and its decorators with it.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.counting import calls_made

from autellix_backend.core.admission.contexts import ProgramContexts, fill_blocks

# Each call: which earlier one it follows, how much of it and how many tokens of its own.
CALLS = st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=12)


def prompts_of(calls: list[tuple[int, float, int]]) -> list[tuple[str, int, list[str]]]:
    """Return, for each call, the one that it follows, the tokens that they share, and its prompt."""
    found: list[tuple[str, int, list[str]]] = []
    for number, (which, share, own) in enumerate(calls):
        base = which % number if number else None
        beginning = [] if base is None else found[base][2][: round(share * len(found[base][2]))]
        prompt = beginning + [f"{number}.{place}" for place in range(own)]
        found.append((f"c{base}", len(beginning), prompt))
    return found


def filled(prompts: list[tuple[str, int, list[str]]]) -> ProgramContexts:
    contexts = ProgramContexts()
    for number, (follows, shared, prompt) in enumerate(prompts):
        contexts.add(f"c{number}", len(prompt), shared=shared, follows=follows)
    return contexts


def union(prompts: list[list[str]]) -> int:
    return len({token for prompt in prompts for token in prompt})


@given(CALLS)
def test_live_contexts_count_as_the_tokens_that_they_hold_together(
    calls: list[tuple[int, float, int]],
) -> None:
    prompts = prompts_of(calls)

    assert filled(prompts).tokens(0) == union([prompt for _, _, prompt in prompts])


@given(CALLS, st.sets(st.integers(0, 11)))
def test_after_calls_have_left_no_token_of_the_others_is_forgotten(
    calls: list[tuple[int, float, int]], leaving: set[int]
) -> None:
    prompts = prompts_of(calls)
    contexts = filled(prompts)
    left = [number for number in leaving if number < len(calls)]
    for number in left:
        contexts.leave(f"c{number}", 0)
        contexts.check()
    rest = [prompt for number, (_, _, prompt) in enumerate(prompts) if number not in left]

    assert union(rest) <= contexts.tokens(0) <= sum(map(len, rest))


@given(CALLS, st.integers(0, 30))
def test_a_prefix_of_all_is_left_out(calls: list[tuple[int, float, int]], prefix: int) -> None:
    prompts = [
        (follows, shared + prefix, [*map(str, range(prefix)), *prompt])
        for follows, shared, prompt in prompts_of(calls)
    ]

    assert filled(prompts).tokens(prefix) == union([prompt for _, _, prompt in prompts]) - prefix


def test_without_a_live_call_the_last_context_counts() -> None:
    contexts = ProgramContexts()
    contexts.add("a", 30, shared=0, follows=None)
    contexts.leave("a", 40)
    contexts.add("b", 50, shared=40, follows=None)
    assert contexts.tokens(10) == 40

    contexts.leave("b", 0)

    assert (contexts.tokens(10), contexts.tokens(50)) == (30, 0)


def test_branches_of_a_context_that_has_left_hold_its_beginning_once() -> None:
    contexts = ProgramContexts()
    contexts.add("base", 30, shared=0, follows=None)
    contexts.leave("base", 40)
    contexts.add("a", 45, shared=40, follows="base")
    contexts.add("b", 35, shared=30, follows="base")

    assert contexts.tokens(0) == 40 + 5 + 5
    assert contexts.tokens_of(["b"], 0) == 35


def test_a_call_that_continues_one_that_has_left_follows_what_that_followed() -> None:
    contexts = ProgramContexts()
    contexts.add("main", 30, shared=0, follows=None)
    contexts.add("a", 40, shared=30, follows="main")
    contexts.add("b", 50, shared=40, follows="a")

    contexts.leave("a", 45)

    assert contexts.tokens(0) == 30 + 20


def test_a_call_that_says_nothing_of_whom_it_follows_follows_the_latest() -> None:
    contexts = ProgramContexts()
    contexts.add("a", 30, shared=0, follows=None)
    contexts.add("b", 35, shared=30, follows=None)
    contexts.resize("b", 37)

    assert contexts.tokens(0) == 37


def test_a_beginning_that_is_shared_with_an_unknown_context_counts() -> None:
    """As where a program returns whose contexts were forgotten."""
    contexts = ProgramContexts()
    contexts.add("c1", 100, shared=90, follows=None)

    assert contexts.tokens(0) == 100
    contexts.add("c2", 110, shared=100, follows=None)
    assert contexts.tokens(0) == 110


@given(CALLS, st.lists(st.tuples(st.integers(0, 11), st.integers(0, 40)), max_size=24), st.integers(0, 30))
def test_the_running_sums_are_those_of_all_live_contexts(
    calls: list[tuple[int, float, int]], changes: list[tuple[int, int]], prefix: int
) -> None:
    """Whatever arrives, grows, leaves and comes back under its old id, at any prefix."""
    contexts = ProgramContexts()
    live: set[str] = set()
    prompts = iter(enumerate(prompts_of(calls)))
    for place, tokens in changes:
        call_id = f"c{place}"
        if call_id not in live:
            number, (follows, shared, prompt) = next(prompts, (place, ("c0", tokens, [])))
            call_id = f"c{number}"
            if call_id in live:
                continue
            contexts.add(call_id, len(prompt), shared=shared, follows=follows if tokens % 3 else None)
            live.add(call_id)
        elif tokens % 2:
            contexts.resize(call_id, tokens)
        else:
            contexts.leave(call_id, tokens)
            live.remove(call_id)
        contexts.check()
        if live:
            assert contexts.tokens(prefix * (tokens % 2)) == contexts.tokens_of(live, prefix * (tokens % 2))


def event_calls(live: int) -> int:
    """Return the work of an arrival, a growth and an end in a program with this many live calls."""
    contexts = ProgramContexts()
    contexts.add("base", 100, shared=0, follows=None)
    for number in range(live):
        contexts.add(f"c{number}", 120, shared=100, follows="base")
    contexts.leave("base", 110)
    contexts.tokens(10)

    def events() -> None:
        contexts.add("one", 150, shared=100, follows="base")
        contexts.resize("one", 160)
        contexts.tokens(10)
        contexts.leave("one", 160)
        contexts.tokens(10)

    return calls_made(events)


def test_an_event_costs_the_same_with_many_live_calls() -> None:
    assert event_calls(2000) == event_calls(20)


def test_contexts_fill_whole_blocks() -> None:
    """Calls share the whole blocks of a beginning, and each fills up its last one for itself."""
    contexts = ProgramContexts(fill_blocks(16))
    contexts.add("a", 33, shared=0, follows=None)
    contexts.add("b", 40, shared=30, follows="a")

    assert contexts.tokens(0) == 48 + (48 - 16)
    assert contexts.tokens(16) == 32 + 32
    assert contexts.tokens_of(["b"], 0) == (48 - 16) + 32
    assert contexts.length(16) == (33 - 16) + (40 - 30)

    contexts.leave("a", 0)
    contexts.leave("b", 49)
    assert (contexts.tokens(0), contexts.length(0), contexts.tokens(64)) == (64, 49, 0)


@given(st.integers(1, 64), st.integers(0, 500), st.integers(0, 500))
def test_blocks_of_a_beginning_and_of_the_rest_are_those_of_all(
    block: int, tokens: int, blocks_before: int
) -> None:
    fill, beginning = fill_blocks(block), blocks_before * block

    assert fill(tokens, beginning) == max(0, fill(tokens, 0) - beginning)
    assert tokens <= fill(tokens, 0) < tokens + block
