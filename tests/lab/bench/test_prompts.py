from __future__ import annotations

from autellix_lab.bench.prompts import WORDS, PromptBook, PromptLength
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def call(number: int, prefill: int, shared: int = 0, prefix_from: int | None = None) -> CallTrace:
    return CallTrace(
        id=number,
        parents=(),
        thread="main",
        prefill_tokens=prefill,
        decode_tokens=20,
        shared_prefix_tokens=shared,
        prefix_from=prefix_from,
    )


def program(*calls: CallTrace, name: str = "p", prefix: int | None = None) -> ProgramTrace:
    return ProgramTrace(source="s", program_id=name, calls=calls, system_prefix_tokens=prefix)


LENGTH = PromptLength.from_probes((16, 26), (272, 282))


def test_probes_give_overhead_and_slope() -> None:
    assert PromptLength(10.0, 1.0) == LENGTH
    assert LENGTH.words_for(110) == 100
    assert LENGTH.words_for(3) == 1


def test_a_backend_that_does_not_count_gets_a_word_per_token() -> None:
    assert PromptLength.from_probes((16, 12), (272, 12)) == PromptLength(0.0, 1.0)


def test_a_prompt_has_the_traces_length() -> None:
    prompt = PromptBook(program(call(0, 60)), LENGTH).prompt(call(0, 60))
    assert len(prompt.split()) == 50
    assert set(prompt.split()) <= set(WORDS)


def test_a_later_prompt_extends_the_earlier_context() -> None:
    book = PromptBook(program(call(0, 60)), LENGTH)
    first = book.prompt(call(0, 60))
    second = book.prompt(call(1, 100, shared=80, prefix_from=0))
    third = book.prompt(call(2, 100, shared=40, prefix_from=0))
    assert second.startswith(first + " ")
    assert len(second.split()) == 90
    assert third.split()[:30] == first.split()[:30]
    assert third.split()[30:50] != first.split()[30:50]


def test_equal_names_give_equal_prompts() -> None:
    first, again, other = (
        PromptBook(program(call(0, 60), name=name), LENGTH).prompt(call(0, 60)) for name in ("a", "a", "b")
    )
    assert first == again != other


def test_equal_system_prefixes_give_equal_starts() -> None:
    """Programs share the words of the prefix alone, in one run."""
    first, second = call(0, 60), call(1, 100, shared=80, prefix_from=0)
    book = PromptBook(program(first, second, name="a", prefix=40), LENGTH)
    shared, later = book.prompt(first).split(), book.prompt(second).split()
    same, other_list, other_run = (
        PromptBook(program(first, name="b", prefix=prefix), LENGTH, salt).prompt(first).split()
        for prefix, salt in ((40, ""), (41, ""), (40, "run 2"))
    )

    assert same[:30] == shared[:30] == later[:30]
    assert same[30:] != shared[30:]
    assert other_list[:30] != shared[:30] != other_run[:30]
    assert {len(words) for words in (shared, same, other_list, other_run)} == {50}
