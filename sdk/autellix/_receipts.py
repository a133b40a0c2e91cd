"""Keeps the receipts of the latest calls by call id: libraries pass results on without them."""

from __future__ import annotations

from collections import OrderedDict

from autellix._faults import safely

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Fields = dict[str, Any]

FIELD = "autellix"
"""The field of a JSON answer that holds its receipt, and of results to which an integration adds it."""
COMMENT = ": autellix {"
MAX_KEPT = 4096
MAX_FIELDS = 32
MAX_TEXT_CHARACTERS = 256
MAX_COUNT = 2**63

_kept: OrderedDict[str, Fields] = OrderedDict()


def keep(fields: object) -> None:
    """Keep a receipt; the oldest ones are forgotten."""
    if isinstance(fields, dict) and isinstance(fields.get("call_id"), str) and _is_small(fields):
        _kept[fields["call_id"]] = fields
        while len(_kept) > MAX_KEPT:
            # One step: other threads may keep theirs meanwhile.
            _kept.popitem(last=False)


def _is_small(fields: Fields) -> bool:
    """Return whether the fields are a few numbers and ids, as any host may send what looks like a receipt."""
    return len(fields) <= MAX_FIELDS and all(
        value is None
        or isinstance(value, bool | float)
        or (isinstance(value, int) and abs(value) < MAX_COUNT)
        or (isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS)
        for value in fields.values()
    )


def keep_comment(line: str) -> None:
    """Keep the receipt in a comment of a stream."""
    if line.startswith(COMMENT):
        safely(_keep_text, line[len(COMMENT) - 1 :])


def _keep_text(text: str) -> None:
    import json

    keep(json.loads(text))


def kept(call_id: str | None) -> Fields | None:
    """Return the receipt of a call, if it has come."""
    return None if call_id is None else _kept.get(call_id)
