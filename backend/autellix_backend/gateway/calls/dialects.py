"""The table of engine endpoints that the gateway offers, with the dialect of each.

A request to a row with `makes_call` is a call: it belongs to a program, is accounted for, and gets a receipt.
Requests to the other rows are passed through.
"""

from __future__ import annotations

from dataclasses import dataclass

from autellix_backend.gateway.errors import ANTHROPIC_PATH, RESPONSES_PATH, ErrorShape, error_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One endpoint of the engine."""

    path: str
    """The route: `{name}` matches one segment, `{name:path}` any rest."""
    summary: str
    operation: str = "chat"
    """Its operation by OpenTelemetry's GenAI names."""
    method: str = "POST"
    makes_call: bool = True
    takes_identity: bool = True
    """Whether the engine reads `vllm_xargs` here, so that its scheduler knows programs and reports."""
    output_fields: tuple[str, ...] = ()
    """The fields that bound the output of each answer, in tokens: the usual one, then those also read."""
    prompts_fields: tuple[str, ...] = ()
    """The fields that may be several prompts, each of which becomes an engine request."""
    has_choices: bool = False
    """Whether `n` asks for several answers, each of which becomes an engine request."""
    stream_ends: tuple[bytes, ...] = ()
    """The types of a stream's last event, its data for `[DONE]`; empty if the endpoint does not stream."""

    @property
    def errors(self) -> ErrorShape:
        """Return the shape that its clients read errors in."""
        return error_shape(self.path)


def _pooling(path: str, summary: str, operation: str = "chat") -> Dialect:
    return Dialect(path=path, summary=summary, operation=operation, takes_identity=False)


_ONE_RESPONSE = RESPONSES_PATH + "/{response_id}"
_DONE = (b"[DONE]",)
_STATES = (b"completed", b"incomplete", b"failed", b"cancelled")
_RESPONSE_ENDS = (*(b"response." + state for state in _STATES), *_DONE)

CHAT_COMPLETIONS = Dialect(
    path="/v1/chat/completions",
    summary="Chat completion",
    output_fields=("max_completion_tokens", "max_tokens"),
    has_choices=True,
    stream_ends=_DONE,
)

DIALECTS = (
    CHAT_COMPLETIONS,
    Dialect(
        path="/v1/completions",
        summary="Text completion",
        operation="text_completion",
        output_fields=("max_tokens",),
        prompts_fields=("prompt", "prompt_embeds"),
        has_choices=True,
        stream_ends=_DONE,
    ),
    Dialect(
        path=RESPONSES_PATH,
        summary="Response",
        output_fields=("max_output_tokens",),
        stream_ends=_RESPONSE_ENDS,
    ),
    Dialect(
        path=ANTHROPIC_PATH,
        summary="Message, as Anthropic has it",
        output_fields=("max_tokens",),
        stream_ends=(b"message_stop",),
    ),
    Dialect(
        path="/v1/chat/completions/batch",
        summary="Chat completions of several conversations",
        output_fields=("max_completion_tokens", "max_tokens"),
        prompts_fields=("messages",),
    ),
    _pooling("/v1/embeddings", "Embeddings", "embeddings"),
    _pooling("/v2/embed", "Embeddings, as Cohere has them", "embeddings"),
    *(_pooling(path, "Scores of pairs of texts") for path in ("/v1/score", "/score")),
    *(
        _pooling(path, "Documents in the order of their relevance")
        for path in ("/v1/rerank", "/v2/rerank", "/rerank")
    ),
    _pooling("/classify", "Classes of texts"),
    _pooling("/pooling", "Pooled hidden states"),
    Dialect(path=_ONE_RESPONSE, summary="A stored response", method="GET", makes_call=False),
    Dialect(path=_ONE_RESPONSE + "/cancel", summary="Cancel a background response", makes_call=False),
    Dialect(
        path=ANTHROPIC_PATH + "/count_tokens",
        summary="Count the tokens of a message",
        makes_call=False,
    ),
    Dialect(path="/v1/models", summary="The models", method="GET", makes_call=False),
    Dialect(path="/v1/models/{model_id:path}", summary="One model", method="GET", makes_call=False),
    Dialect(path="/tokenize", summary="The tokens of a text", makes_call=False),
    Dialect(path="/detokenize", summary="The text of tokens", makes_call=False),
    Dialect(path="/load", summary="The engine's open requests", method="GET", makes_call=False),
    Dialect(path="/version", summary="The engine's version", method="GET", makes_call=False),
)
