"""A call's JSON body, of which the gateway decodes only what it needs.

The top level is split into raw slices; messages, tools and unknown fields are passed on byte by byte. No body
may block the event loop: see `raw_json`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.identity.fields import XARGS, asks_for_beams, offers_tools, read_xargs, split_fields
from autellix_backend.raw_json import (
    JSON_ERRORS,
    MAX_ITEMS,
    first_item_byte,
    items,
    may_have_more,
    scalar,
    whole_number,
)
from autellix_backend.settings import TenantLimits

MAX_MODEL_CHARACTERS = 256


class CallBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body split at its top level, and what the router, logs and traces read of it."""

    fields: dict[str, msgspec.Raw]
    xargs: dict[str, msgspec.Raw]
    size_bytes: int
    prompt_count: int
    choice_count: int
    """The answers that it asks for, for each prompt."""
    record_count: int
    """The engine requests that it becomes: one for each prompt and choice."""
    model: str | None
    is_streaming: bool
    offers_tools: bool = False
    """Whether tools may be called, whose results come with another call; one that must be is a form."""
    is_beam_search: bool = False
    """Whether its engine may split it into requests that lack its arguments."""


def parse_body(data: bytes, dialect: Dialect) -> CallBody:
    """Split a body; a model or a stream flag of the wrong type counts as absent.

    Raises:
        InvalidRequestError: if it or its vllm_xargs is not a JSON object.
    """
    fields = _split(data)
    is_streaming = "stream" in fields and scalar(fields["stream"]) is True
    is_beam_search, choice_count = False, 1
    if dialect.has_choices:
        is_beam_search = asks_for_beams(fields)
        # The engine refuses an invalid number.
        choice_count = max(1, whole_number(fields["n"]) or 1) if "n" in fields else 1
    prompt_count = _prompt_count(fields, dialect) if dialect.prompts_fields else 1
    each = _beam_requests(fields, dialect, choice_count) if is_beam_search else choice_count
    has_tools = offers_tools(fields)
    model = scalar(fields.get("model"))
    return CallBody(
        fields=fields,
        xargs=_xargs(fields) if XARGS in fields else {},
        size_bytes=len(data),
        prompt_count=prompt_count,
        choice_count=choice_count,
        record_count=prompt_count * each,
        model=model[:MAX_MODEL_CHARACTERS] if isinstance(model, str) else None,
        is_streaming=is_streaming,
        offers_tools=has_tools,
        is_beam_search=is_beam_search,
    )


def _split(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return split_fields(data)
    except JSON_ERRORS as error:
        raise InvalidRequestError(f"the body is not a JSON object: {error}") from error


def bounded(body: CallBody, limits: TenantLimits, dialect: Dialect) -> CallBody:
    """Return the body within a tenant's limits; one without a bound on its output tokens gets the limit.

    Raises:
        InvalidRequestError: if a field asks for more than a limit allows.
    """
    if limits.max_output_tokens is None or not dialect.output_fields:
        return body
    answers = body.prompt_count * max(body.choice_count, whole_number(body.fields.get("best_of")) or 1)
    if _is_output_bounded(body, dialect.output_fields, answers, limits.max_output_tokens):
        return body
    each = limits.max_output_tokens // answers
    if not each:
        problem = f"n: the call asks for {answers} answers; expected {limits.max_output_tokens} at most"
        raise InvalidRequestError(f"{problem} (limits.max_output_tokens)", param="n")
    bound = msgspec.Raw(str(each).encode())
    return replace(body, fields={**body.fields, dialect.output_fields[0]: bound})


def most_output_tokens(body: CallBody, dialect: Dialect) -> int | None:
    """Return the bound of each answer's output that a body states; None without one."""
    if not dialect.output_fields:
        return 0
    stated = [whole_number(body.fields.get(name)) for name in dialect.output_fields]
    return next((most for most in stated if most is not None and most > 0), None)


def _xargs(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    try:
        return read_xargs(fields)
    except JSON_ERRORS as error:
        raise InvalidRequestError(f"{XARGS} is not a JSON object: {error}", param=XARGS) from error


def _beam_requests(fields: Mapping[str, msgspec.Raw], dialect: Dialect, choices: int) -> int:
    """Return the most engine requests that a beam search may make of one prompt."""
    stated = [whole_number(fields.get(name)) for name in dialect.output_fields]
    tokens = next(filter(None, stated), 1)
    # One for the first token, from which all beams begin.
    return 1 + choices * max(0, tokens - 1)


def _prompt_count(fields: Mapping[str, msgspec.Raw], dialect: Dialect) -> int:
    count = 0
    for name in dialect.prompts_fields:
        if (raw := fields.get(name)) is not None and bytes(memoryview(raw)[:5]) != b"null":
            # A list of numbers is one tokenised prompt; a list of texts or of lists is one prompt each.
            begin = first_item_byte(raw)
            count += _item_count(name, raw, begin) if begin in (b'"', b"[") else 1
    return max(1, count)


def _item_count(name: str, raw: msgspec.Raw, begin: bytes) -> int:
    """Return the number of items of a list of texts, lists or objects, by the first byte of the first item.

    Raises:
        InvalidRequestError: if there may be too many to be counted without delaying others.
    """
    marks = 2 * MAX_ITEMS if begin == b'"' else MAX_ITEMS
    if may_have_more(raw, begin, marks):
        problem = f"{name}: too long a list, with more than {marks} {begin.decode()}; expected fewer"
        raise InvalidRequestError(problem, param=name)
    return len(items(raw))


def _is_output_bounded(body: CallBody, names: tuple[str, ...], answers: int, limit: int) -> bool:
    """Return whether the body bounds its output.

    Raises:
        InvalidRequestError: if a bound, times the answers, is above the limit, or is not a whole number.
    """
    is_bounded = False
    for name in names:
        raw = body.fields.get(name)
        if raw is None or bytes(memoryview(raw)[:5]) == b"null":
            continue
        wanted = whole_number(raw)
        if wanted is None:
            raise InvalidRequestError(
                f"{name} is not a whole number; expected a number of tokens", param=name
            )
        if wanted * answers > limit:
            times = f"{wanted} for each of {answers} answers" if answers > 1 else f"{wanted}"
            problem = f"{name} is {times}; expected {limit} at most (limits.max_output_tokens)"
            raise InvalidRequestError(problem, param=name)
        is_bounded = True
    return is_bounded
