"""What contexts share, from chained hashes of their blocks."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from autellix_backend.core.arrival import Context
from autellix_backend.vllm_plugin import context
from autellix_backend.vllm_plugin.context import MAX_CONTEXTS, ContextIndex

BLOCK = 16


def hashes(text: str, salt: str = "") -> list[str]:
    """Chained hashes of blocks of one letter each, as vLLM makes them."""
    return list(accumulate(text, lambda chain, block: str(hash((chain, block))), initial=salt))[1:]


def arrive(index: ContextIndex, program_id: str, text: str, salt: str = "") -> Context:
    found = index.arrive(program_id, text, hashes(text, salt), len(text) * BLOCK + 3)
    index.check()
    return found


@pytest.fixture
def index() -> ContextIndex:
    return ContextIndex(BLOCK)


def test_without_hashes_all_is_private(index: ContextIndex) -> None:
    assert index.arrive("p", "r", [], 500) == Context(500)
    assert not index._programs


def test_the_next_call_of_a_program_shares_what_it_repeats(index: ContextIndex) -> None:
    assert arrive(index, "p", "abcd") == Context(4 * BLOCK + 3)
    assert arrive(index, "p", "abcdefg").shared_tokens == 4 * BLOCK
    assert arrive(index, "p", "abxy").shared_tokens == 2 * BLOCK
    assert arrive(index, "q", "zz").shared_tokens == 0


def test_the_answer_of_a_call_is_shared_as_well(index: ContextIndex) -> None:
    """vLLM appends the hashes of what a call decodes to the same list."""
    growing = hashes("abc")
    index.arrive("p", "r", growing, 3 * BLOCK)
    growing.extend(hashes("abcde")[3:])
    assert arrive(index, "p", "abcdef").shared_tokens == 5 * BLOCK


def test_strands_of_a_program_are_told_apart(index: ContextIndex) -> None:
    for text in ("ab", "cd", "abab", "cdcd"):
        arrive(index, "p", text)
    assert arrive(index, "p", "ababab").shared_tokens == 4 * BLOCK
    assert arrive(index, "p", "cdcdcd").shared_tokens == 4 * BLOCK


def test_after_a_reset_only_live_contexts_are_shared(index: ContextIndex) -> None:
    """A call is known by its prompt here. Prefixes that programs share are still known."""
    for text in ("abcd", "wxyz"):
        arrive(index, "p", text)
    index.lose_contexts({"wxyz"})
    index.check()
    assert arrive(index, "p", "abcdef").shared_tokens == 0
    assert arrive(index, "p", "wxyzzz").shared_tokens == 4 * BLOCK
    assert arrive(index, "q", "abcq").prefix_tokens == 3 * BLOCK


def test_the_oldest_strand_is_dropped(index: ContextIndex) -> None:
    for number in range(MAX_CONTEXTS + 1):
        arrive(index, "p", str(number) * 4)
    assert arrive(index, "p", "1" * 5).shared_tokens == 4 * BLOCK
    assert arrive(index, "p", "0" * 5).shared_tokens == 0


def test_programs_that_begin_alike_have_one_prefix(index: ContextIndex) -> None:
    first = arrive(index, "p", "tttttttt" + "p")
    others = [arrive(index, name, "tttttttt" + name * 3) for name in "qrs"]
    assert (first.prefix, first.prefix_tokens) == (None, 0)
    assert {found.prefix for found in others} == {hashes("tttttttt")[-1]}
    assert {found.prefix_tokens for found in others} == {8 * BLOCK}


def test_the_first_of_its_kind_learns_its_prefix_from_the_second(index: ContextIndex) -> None:
    """Else what they share would count twice for as long as the first is active."""
    assert arrive(index, "p", "abcx").prefix is None
    second = arrive(index, "q", "abcy")
    assert second.prefix_tokens == 3 * BLOCK

    first = arrive(index, "p", "abcxz")

    assert (first.prefix, first.prefix_tokens) == (second.prefix, second.prefix_tokens)


def test_a_prefix_stays_with_its_program(index: ContextIndex) -> None:
    arrive(index, "p", "ttttp")
    before = arrive(index, "q", "ttttq")
    after = arrive(index, "q", "ttttqqq")
    assert after.prefix == before.prefix is not None
    assert after.shared_tokens == 5 * BLOCK


def test_a_call_that_begins_otherwise_has_no_prefix(index: ContextIndex) -> None:
    for name in ("p", "q"):
        arrive(index, name, "tttt" + name)
    for text in ("tt", "xxxxxx"):
        assert arrive(index, "q", text).prefix is None
    assert arrive(index, "q", "ttttz").prefix_tokens == 4 * BLOCK


def test_words_that_happen_to_agree_make_no_prefix_of_their_own(index: ContextIndex) -> None:
    """Two programs that agree in one more block than all others still count under the common prefix."""
    for name in "pqr":
        arrive(index, name, "tttttttt" + name)
    assert arrive(index, "s", "tttttttt" + "px").prefix == hashes("tttttttt")[-1]


def test_a_much_longer_prefix_counts_as_another(index: ContextIndex) -> None:
    for name in ("p", "q"):
        arrive(index, name, "tttt" + name)
    for name in ("r", "s"):
        found = arrive(index, name, "tttt" + "uuuu" + name)
    assert found.prefix == hashes("ttttuuuu")[-1]
    assert arrive(index, "v", "tttt" + "v").prefix == hashes("tttt")[-1]


def test_salted_contexts_share_nothing(index: ContextIndex) -> None:
    arrive(index, "p", "tttt", salt="a")
    assert arrive(index, "q", "tttt", salt="b").prefix is None


def test_an_ended_program_leaves_its_first_prompt_to_others(index: ContextIndex) -> None:
    arrive(index, "p", "ttttp")
    index.end("p")
    index.end("unknown")
    index.check()
    assert arrive(index, "q", "ttttq").prefix_tokens == 4 * BLOCK
    assert arrive(index, "p", "ttttp").shared_tokens == 0


def test_memory_is_bounded(index: ContextIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_PROGRAMS", 8)
    monkeypatch.setattr(context, "MAX_KEPT_BLOCKS", 60)
    monkeypatch.setattr(context, "MAX_PREFIX_BLOCKS", 4)
    generator = random.Random(3)
    for _ in range(500):
        text = "t" * generator.randrange(5) + "".join(generator.choices("abc", k=generator.randrange(1, 9)))
        program = f"p{generator.randrange(30)}"
        found = arrive(index, program, text)
        assert found.prefix_tokens <= 4 * BLOCK
        assert max(found.shared_tokens, found.prefix_tokens) <= found.tokens
        assert len(index._programs) <= 8
    # One program alone may have more than all should.
    assert arrive(index, "long", "x" * 100).tokens == 100 * BLOCK + 3
    assert set(index._programs) == {"long"}


def test_common_lengths_are_those_of_a_walk(index: ContextIndex) -> None:
    generator = random.Random(7)
    for number in range(200):
        one, other = ("".join(generator.choices("ab", k=generator.randrange(1, 12))) for _ in range(2))
        common = next(
            (n for n in range(min(len(one), len(other))) if one[n] != other[n]), min(len(one), len(other))
        )
        arrive(index, f"p{number}", one)
        assert arrive(index, f"p{number}", other).shared_tokens == common * BLOCK
