"""Defines the receipt of a call, and finds it in what clients and frameworks return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from autellix._faults import safely
from autellix._receipts import FIELD, kept
from autellix_wire.headers import CALL_ID

MAX_DEPTH = 6
PARTS = ("response", "http_response", "usage", "models_usage", "message", "messages", "chat_message", "raw")
"""Attributes and keys under which a result holds its receipt, directly or deeper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a call cost; None where only the engine could know and did not report.

    `wait_s` are the seconds in queues, `inactive_s` those of them in which its program waited for KV
    memory, and `service_s` those in the engine's executed steps. `level` is the last queue level (1 is the
    best), `cached_tokens` the prompt tokens found in the prefix cache. `estimated` tells that no report of
    the engine came, so that the numbers are estimates.
    """

    __module__ = "autellix"

    call_id: str
    program_id: str
    wait_s: float
    service_s: float
    inactive_s: float = 0.0
    preemptions: int | None = None
    demotions: int | None = None
    promotions: int | None = None
    level: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    arrival_step: int | None = None
    finish_step: int | None = None
    engine_steps: int | None = None
    estimated: bool = False


NAMES = frozenset(field.name for field in fields(Receipt))


def find_receipt(result: object) -> Receipt | None:
    """Return what `autellix.receipt` documents."""
    found = _find(result, MAX_DEPTH)
    if found is None:
        return None
    # A later gateway may add fields.
    return Receipt(**{name: value for name, value in found.items() if name in NAMES})


def _find(result: object, depth: int) -> dict[str, Any] | None:
    own = _own_fields(result)
    if own is not None or depth == 0:
        return own
    for part in _parts(result):
        found = _find(part, depth - 1)
        if found is not None:
            return found
    return None


def _own_fields(result: object) -> dict[str, Any] | None:
    for holder in (result, *(getattr(result, name, None) for name in ("model_extra", "response_metadata"))):
        found = holder.get(FIELD) if isinstance(holder, Mapping) else None
        if found and isinstance(found, list):
            # Of several calls, whose chunks have been added.
            found = found[-1]
        if _is_receipt(found):
            return found
    marked = getattr(result, "__dict__", {}).get(f"_{FIELD}_receipt")
    return marked if _is_receipt(marked) else _of_http(result)


def _is_receipt(found: object) -> bool:
    needed = ("call_id", "program_id", "wait_s", "service_s")
    return isinstance(found, dict) and all(name in found for name in needed)


def _of_http(result: object) -> dict[str, Any] | None:
    headers = getattr(result, "headers", None)
    get = getattr(headers, "get", None)
    if get is None:
        return None
    found = kept(get(CALL_ID) or get(CALL_ID.lower()))
    read = getattr(result, "json", None)
    if found is None and callable(read) and getattr(result, "is_closed", True):
        # A body that is no JSON has no receipt.
        answer = safely(read)
        field = answer.get(FIELD) if isinstance(answer, dict) else None
        return field if _is_receipt(field) else None
    return found


def _parts(result: object) -> Iterator[object]:
    """Yield what a result consists of, the latest part first."""
    if isinstance(result, Mapping):
        yield from (result[name] for name in PARTS if name in result)
    elif isinstance(result, Sequence) and not isinstance(result, str | bytes):
        yield from reversed(result)
    elif result is not None:
        yield from (
            part for name in PARTS if (part := getattr(result, name, None)) is not None and not callable(part)
        )
