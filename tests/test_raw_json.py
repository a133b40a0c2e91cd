"""Values of clients, read within bounds."""

from __future__ import annotations

import msgspec
import pytest

from autellix_backend.raw_json import (
    MAX_SCALAR_BYTES,
    ValueMarks,
    count_marks,
    first_item_byte,
    scalar,
    whole_number,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'"a"', "a"),
        (b"true", True),
        (b"1e999", None),
        (b"1" * 5000, None),
        (b'"\xff"', None),
        (b"[" * 5000, None),
        (b'"' + b"a" * MAX_SCALAR_BYTES + b'"', None),
        (b"{", None),
    ],
)
def test_a_value_that_python_refuses_counts_as_absent(text: bytes, value: object) -> None:
    assert scalar(msgspec.Raw(text)) == value
    assert scalar(None) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"3", 3),
        (b'"16"', 16),
        (b"16.0", 16),
        (b'"16.0"', 16),
        (b"1.5", None),
        (b"true", None),
        (b'"many"', None),
        (b"[1]", None),
        (b'"1e999"', None),
        (b'"nan"', None),
        (b"1" * 400, None),
    ],
)
def test_whole_numbers_are_read_as_engines_do(text: bytes, number: int | None) -> None:
    assert whole_number(msgspec.Raw(text)) == number


@pytest.mark.parametrize(
    ("text", "byte"),
    [
        (b"[]", b"]"),
        (b'[ \n"a"]', b'"'),
        (b"[[1]]", b"["),
        (b"[7]", b"7"),
        (b"[" + b" " * 1000 + b'"a"]', b'"'),
        (b'"text"', b""),
    ],
)
def test_the_first_item_says_what_a_list_holds(text: bytes, byte: bytes) -> None:
    assert first_item_byte(msgspec.Raw(text)) == byte


@pytest.mark.parametrize("unit", [b"[],", b'{"a":1},', b'"a":1,', b"1,"])
def test_each_value_has_a_mark(unit: bytes) -> None:
    assert count_marks(unit * 1000) >= 1000


@pytest.mark.parametrize("unit", [b"iVBORw0KGgo", b"The cat: it sat on the mat, [1] and slept. "])
def test_pictures_and_texts_have_few(unit: bytes) -> None:
    text = unit * (4 * 2**20 // len(unit))
    assert count_marks(text) <= len(text) / 10


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        (b"", 0),
        (b"[1,2,3]", 3),
        (b'{"a": [1, 2], "b": {}}', 7),
        (b'{"a": "x, [y]: {z}", "b": ""}', 4),
        (rb'{"a": "\", [\\", "b": "\\\" , "}', 4),
        (rb'["\\\\", "\\\"", 1]', 3),
        (b'{"a": "no end, [', 2),
        (b'["\xff\n, ", 1]', 2),
    ],
)
def test_marks_in_texts_do_not_count_however_a_body_is_split(text: bytes, marks: int) -> None:
    assert ValueMarks().count(text) == marks
    for size in range(1, len(text)):
        counter = ValueMarks()
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        assert sum(map(counter.count, parts)) == marks, size
