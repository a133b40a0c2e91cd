"""Tables in Markdown."""

from __future__ import annotations

from autellix_lab.sim.markdown import markdown_table


def test_a_table_has_a_line_for_each_row() -> None:
    assert markdown_table(("a", "b"), [(1, "x")]) == ["| a | b |", "| --- | --- |", "| 1 | x |"]
