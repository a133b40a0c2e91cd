"""Made-up tokens: the next one follows from all before it, and so does what a model keeps of each."""

from __future__ import annotations

from collections.abc import Iterable

TOKENS = 997
END = 0
"""The token that ends an answer."""
_MODULUS = (1 << 61) - 1


def kept(before: int, token: int) -> int:
    """Return what the model keeps of a token behind others, of whose last one it has kept `before`."""
    return (before * 6364136223846793005 + (token + 1) * 1442695040888963407 + 12345) % _MODULUS


def kept_of(tokens: Iterable[int], adapter: int = 0) -> int:
    """Return what the model keeps of the last of some tokens, with an adapter."""
    value = 7 + adapter
    for token in tokens:
        value = kept(value, token)
    return value


def next_token(value: int) -> int:
    """Return the token that follows one of which the model has kept this."""
    number = (value >> 7) % (3 * TOKENS)
    return END if number % 41 == 0 else number % TOKENS or 1


def answer(prompt: Iterable[int], most: int, *, ignores_end: bool, adapter: int = 0) -> list[int]:
    """Return the answer to a prompt."""
    value, tokens = kept_of(prompt, adapter), list[int]()
    while len(tokens) < most:
        tokens.append(next_token(value))
        value = kept(value, tokens[-1])
        if tokens[-1] == END and not ignores_end:
            break
    return tokens
