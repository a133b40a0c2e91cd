"""Tables on a terminal, in a pipe and in a file."""

from __future__ import annotations

import io
import os
import sys

import pytest

from autellix_backend.cli.terminal import ELLIPSIS, Row, Style, Terminal, full_screen, redraw

HEADINGS = ("ID", "NAME", "STATE")


def lines_of(*cells: str, width: int) -> list[str]:
    return Terminal(width=width).table(HEADINGS, [Row(cells=cells)])


def test_columns_are_as_wide_as_their_cells() -> None:
    assert lines_of("program-1", "x", "up", width=80) == ["ID         NAME  STATE", "program-1  x     up"]


def test_ids_are_folded_before_others_are_cut() -> None:
    lines = lines_of("i" * 30, "n" * 10, "s" * 10, width=40)

    assert [len(line) for line in lines[1:]] == [40, 14]
    assert "".join(lines).count("i") == 30
    assert ELLIPSIS not in "".join(lines)


def test_cells_end_in_an_ellipsis_where_the_width_does_not_suffice() -> None:
    lines = lines_of("i" * 30, "n" * 40, "s" * 10, width=40)

    assert all(len(line) <= 40 for line in lines)
    assert "".join(lines).count("i") == 30
    assert "n" * 13 + ELLIPSIS + "  " + "s" * 10 in lines[1]


@pytest.mark.parametrize("width", [1, 5, 17])
def test_a_terminal_may_be_narrower_than_the_table(width: int) -> None:
    lines = lines_of("program-17-of-many", "react", "up", width=width)
    assert "".join(line[:12].rstrip() for line in lines[1:]) == "program-17-of-many"


def test_codes_of_clients_do_not_reach_the_terminal() -> None:
    [_, line] = lines_of("a\x1b[2Jb", "c\nd", "e\x9bf", width=80)
    assert line.split() == ["a?[2Jb", "c?d", "e?f"]


def test_rows_have_colors_on_a_terminal_only() -> None:
    row = Row(cells=("a", "b", "c"), style=Style.GREEN)

    assert Terminal(has_color=True).table(HEADINGS, [row])[1].startswith("\x1b[32ma ")
    assert "\x1b" not in "".join(Terminal().table(HEADINGS, [row]))


@pytest.mark.parametrize(
    ("is_terminal", "variables", "expected"),
    [
        (True, {"TERM": "xterm"}, Terminal(width=99, height=7, is_terminal=True, has_color=True)),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, Terminal(width=99, height=7, is_terminal=True)),
        (True, {"TERM": "dumb"}, Terminal()),
        (False, {"TERM": "xterm"}, Terminal()),
    ],
)
def test_the_output_decides(
    is_terminal: bool, variables: dict[str, str], expected: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"COLUMNS": "99", "LINES": "7", **variables}.items():
        monkeypatch.setitem(os.environ, name, value)

    assert Terminal.of_output() == expected


def test_the_screen_of_before_is_back_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), full_screen():
        redraw(["one", "two"])
        raise KeyboardInterrupt
    assert capsys.readouterr().out == (
        "\x1b[?1049h\x1b[?25l\x1b[Hone\x1b[K\ntwo\x1b[K\x1b[J\x1b[?25h\x1b[?1049l"
    )
