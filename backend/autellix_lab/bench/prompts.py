"""Prompts of given token lengths: words for tokens; a later call repeats the start of an earlier one.

Programs with equal system prefixes, such as lists of tools, begin with the same words.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import CallTrace, ProgramTrace

# Short common words that are one token each to the demo model, and to most others.
_TEXT = """
the of and to in is that for was on are as with at be have or by what were we an if do then so other
has two time first my use water after through before our used me think because
"""
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class PromptLength:
    """How many tokens a prompt of some words makes: `overhead + per_word * words`."""

    overhead_tokens: float
    per_word_tokens: float

    @classmethod
    def from_probes(cls, short: tuple[int, int], long: tuple[int, int]) -> PromptLength:
        """Fit the line through two measured (words, prompt tokens) pairs; fall back to one token per word."""
        slope = (long[1] - short[1]) / (long[0] - short[0])
        if slope <= 0:
            return cls(0.0, 1.0)
        return cls(short[1] - slope * short[0], slope)

    def words_for(self, tokens: int) -> int:
        """Return the number of words, at least one, whose prompt has about `tokens` tokens."""
        return max(1, round((tokens - self.overhead_tokens) / self.per_word_tokens))


def random_words(rng: random.Random, count: int) -> list[str]:
    """Return `count` words."""
    return rng.choices(WORDS, k=count)


class PromptBook:
    """The prompts of one program; the words of an answer stand for its tokens in the history."""

    def __init__(self, program: ProgramTrace, length: PromptLength, salt: str = "") -> None:
        """Seed the words with the program's name and the salt: equal ones give equal prompts."""
        self._rng = random.Random(f"{salt}:{program.program_id}")
        self._length = length
        self._contexts: dict[int, list[str]] = {}
        self._prefix: list[str] = []
        if (prefix := system_prefix(program)) is not None:
            count = length.words_for(prefix.length)
            self._prefix = random_words(random.Random(f"{salt}:{prefix.key}"), count)

    def prompt(self, call: CallTrace) -> str:
        """Write the prompt of a call, and remember it with an answer's worth of words; once per call."""
        count = self._length.words_for(call.prefill_tokens)
        words = [] if call.id else self._prefix[:count]
        if call.prefix_from is not None:
            shared = self._length.words_for(call.shared_prefix_tokens)
            words = self._contexts[call.prefix_from][: min(shared, count - 1)]
        words = words + random_words(self._rng, count - len(words))
        answer = round(call.decode_tokens / self._length.per_word_tokens)
        self._contexts[call.id] = words + random_words(self._rng, answer)
        return " ".join(words)
