"""Prompts in tokens, estimated from bytes."""

from __future__ import annotations

import pytest

from autellix_backend.gateway.calls.router import MAX_MODELS, PromptLengths


def test_the_rate_starts_at_four_bytes_per_token() -> None:
    assert PromptLengths().estimate("m", 400) == 100


def test_the_rate_of_each_model_is_learned() -> None:
    lengths = PromptLengths()
    for _ in range(100):
        lengths.learn("wide", 1000, 100)
        lengths.learn("narrow", 1000, 500)
    assert lengths.estimate("wide", 2000) == pytest.approx(200, abs=1)
    assert lengths.estimate("narrow", 2000) == pytest.approx(1000, abs=1)


def test_one_odd_prompt_moves_little() -> None:
    """An image in a body, or an answer that is stored at the engine, says nothing about other bodies."""
    lengths = PromptLengths()
    for _ in range(3):
        lengths.learn("m", 40_000_000, 10)
        lengths.learn("m", 100, 100_000)
    assert 3.8 < 4000 / lengths.estimate("m", 4000) < 4.2


def test_an_answer_without_a_prompt_teaches_nothing() -> None:
    lengths = PromptLengths()
    lengths.learn("m", 400, 0)
    assert lengths.estimate("m", 400) == 100


def test_unknown_model_names_share_one_rate() -> None:
    lengths = PromptLengths()
    for number in range(MAX_MODELS):
        for _ in range(100):
            lengths.learn(f"m{number}", 1000, 100)
    for number in range(1000):
        lengths.learn(f"made-up-{number}", 1000, 500)
    assert len(lengths._rates) == MAX_MODELS + 1
    assert lengths.estimate("m0", 1000) == 100
    assert lengths.estimate("another", 1000) == 500
