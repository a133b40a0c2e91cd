"""How a receipt goes into an answer."""

from __future__ import annotations

import json

import pytest

from autellix_backend.reports.receipt import Receipt

RECEIPT = Receipt(call_id="c", program_id="p", wait_s=0.0, service_s=3.0)


@pytest.mark.parametrize("content", [b'{"a": 1}', b"{}", b'{"a": 1} \n', b"{ }"])
def test_the_receipt_is_the_last_field_of_an_object(content: bytes) -> None:
    spliced = json.loads(RECEIPT.spliced_into(content))
    assert list(spliced)[-1] == "autellix"
    assert spliced.pop("autellix")["program_id"] == "p"
    assert spliced == json.loads(content)


@pytest.mark.parametrize("content", [b"", b"[1]", b"null", b"text"])
def test_an_answer_that_is_no_object_is_unchanged(content: bytes) -> None:
    assert RECEIPT.spliced_into(content) == content


def test_seconds_are_rounded_to_microseconds() -> None:
    receipt = Receipt(
        call_id="c", program_id="p", wait_s=0.0007253900000705471, service_s=2 / 3, inactive_s=0.1 + 0.2
    )
    shown = json.loads(receipt.spliced_into(b"{}"))["autellix"]
    assert (shown["wait_s"], shown["service_s"], shown["inactive_s"]) == (0.000725, 0.666667, 0.3)
    assert b'"wait_s":0.000725,' in receipt.comment()


def test_a_stream_gets_the_receipt_as_a_comment() -> None:
    comment = RECEIPT.comment()
    assert comment.startswith(b": autellix {")
    assert comment.endswith(b"\n\n")
    assert json.loads(comment.removeprefix(b": autellix "))["service_s"] == 3.0
