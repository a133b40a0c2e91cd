"""How many tokens a prompt has, estimated before any engine has seen it.

The gateway has no tokenizer. It divides the bytes of the body by the bytes per token that the answers of the
model have shown so far, 4 until the first one. What is not text in a body (JSON, the options of the call) is
part of that rate.
"""

from __future__ import annotations

FIRST_BYTES_PER_TOKEN = 4.0
LEARNING_RATE = 0.05
MAX_MODELS = 64
"""Further names, which a server may let clients make up, share one rate."""


class PromptLengths:
    """The rates of the models that have answered."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def estimate(self, model: str | None, body_bytes: int) -> int:
        """Return the tokens of a prompt with a body of this size."""
        return int(body_bytes / self._rates.get(self._key(model), FIRST_BYTES_PER_TOKEN))

    def learn(self, model: str | None, body_bytes: int, prompt_tokens: int) -> None:
        """Take in what an engine counted."""
        if prompt_tokens <= 0:
            return
        key, seen = self._key(model), body_bytes / prompt_tokens
        rate = self._rates.get(key, seen)
        self._rates[key] = rate + LEARNING_RATE * (seen - rate)

    def _key(self, model: str | None) -> str:
        is_known = model in self._rates or len(self._rates) < MAX_MODELS
        return model if model is not None and is_known else ""
