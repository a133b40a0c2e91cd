"""The length of a prompt in tokens, estimated before an engine tokenizes it.

The gateway has no tokenizer. It divides the bytes of the body by the model's bytes per token, learned from
its answers and 4 until the first one. JSON syntax and the call's options are part of that rate.
"""

from __future__ import annotations

FIRST_BYTES_PER_TOKEN = 4.0
LEARNING_RATE = 0.05
MAX_MODELS = 64
"""Further names share one rate, because some servers accept any name."""


class PromptLengths:
    """The rates of the models that have answered."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def estimate(self, model: str | None, body_bytes: int) -> int:
        """Return the estimated tokens of a prompt whose body has this size."""
        return int(body_bytes / self._rates.get(self._key(model), FIRST_BYTES_PER_TOKEN))

    def learn(self, model: str | None, body_bytes: int, prompt_tokens: int) -> None:
        """Learn from the tokens that an engine counted."""
        if prompt_tokens <= 0:
            return
        key, seen = self._key(model), body_bytes / prompt_tokens
        rate = self._rates.get(key, seen)
        self._rates[key] = rate + LEARNING_RATE * (seen - rate)

    def _key(self, model: str | None) -> str:
        is_known = model in self._rates or len(self._rates) < MAX_MODELS
        return model if model is not None and is_known else ""
