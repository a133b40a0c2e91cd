"""Reading records: typed fields, and errors that name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_lab.workload.loaders.base import Record, read_json, read_json_lines
from autellix_lab.workload.trace import TraceError

RECORD = Record({"n": 3, "s": "x", "l": [{"a": 1}, 2], "no": None, "b": True}, "f.jsonl, line 4")


def test_fields_have_their_types() -> None:
    """A whole number is also a number, and null counts as missing where a field may be."""
    assert (RECORD.get("n", int), RECORD.get("n", float), RECORD.get("s", str)) == (3, 3.0, "x")
    assert type(RECORD.get("n", float)) is float
    assert RECORD.find("no", int) is None
    assert RECORD.find("absent", int) is None


@pytest.mark.parametrize(
    ("kind", "field", "message"),
    [
        (int, "s", "f.jsonl, line 4: s is 'x'; expected a whole number"),
        (int, "b", "f.jsonl, line 4: b is True; expected a whole number"),
        (str, "z", "f.jsonl, line 4: z is missing; expected a string"),
    ],
)
def test_a_wrong_field_is_named(kind: type[object], field: str, message: str) -> None:
    """With its place and what was expected."""
    with pytest.raises(TraceError) as caught:
        RECORD.get(field, kind)

    assert message == str(caught.value)


def test_a_nested_record_knows_its_path() -> None:
    """An item that is no object is named by its index."""
    with pytest.raises(TraceError, match=r"line 4: l\[1\] is 2; expected an object"):
        RECORD.records("l")

    (inner,) = Record({"l": [{"a": "x"}]}, "f").records("l")
    with pytest.raises(TraceError, match=r"f: l\[0\]\.a is 'x'; expected a whole number"):
        inner.count("a")


def test_counts_and_numbers_are_checked() -> None:
    """Neither may be negative or of mixed types."""
    with pytest.raises(TraceError, match="n is -1; expected zero or more"):
        Record({"n": -1}, "f").count("n")
    with pytest.raises(TraceError, match=r"ids holds 'a'; expected whole numbers"):
        Record({"ids": [1, "a"]}, "f").numbers("ids")


def test_line_separators_inside_strings_do_not_end_a_line(tmp_path: Path) -> None:
    """Only a line feed does; empty lines count but hold nothing."""
    (tmp_path / "x.jsonl").write_text('{"a": "b\u2028c"}\n\n{"a": "d"}\n', encoding="utf-8")

    places = [record.where[-6:] for record in read_json_lines(tmp_path / "x.jsonl")]

    assert places == ["line 1", "line 3"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "x.json: file is not JSON"), (b"\xff\xfe\x00", "x.json cannot be read: 'utf-8' codec")],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """Whether it is not JSON or not text at all."""
    (tmp_path / "x.json").write_bytes(content)

    with pytest.raises(TraceError, match=message):
        read_json(tmp_path / "x.json")
