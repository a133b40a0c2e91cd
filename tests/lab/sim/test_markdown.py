"""Tables, and the parts of pages that programs write."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_lab.sim.markdown import markdown_table, write_part


def test_a_table_has_a_line_for_each_row() -> None:
    assert markdown_table(("a", "b"), [(1, "x")]) == ["| a | b |", "| --- | --- |", "| 1 | x |"]


def test_only_the_named_part_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: -->\nold\n<!-- :a -->\nbetween\n<!-- b: -->\nkept\n<!-- :b -->\n")
    for _ in range(2):
        write_part(page, "a", ["new", "lines", ""])
        assert page.read_text() == (
            "before\n<!-- a: -->\n\nnew\nlines\n\n<!-- :a -->\nbetween\n<!-- b: -->\nkept\n<!-- :b -->\n"
        )


@pytest.mark.parametrize("text", ["", "<!-- a: -->", "<!-- :a -->\n<!-- a: -->"])
def test_a_page_without_the_part_is_left_alone(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="no part between"):
        write_part(page, "a", ["new"])
    assert page.read_text() == text
