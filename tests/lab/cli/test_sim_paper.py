"""`autellix sim paper`: files, output and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_backend.cli.main import main


def run(*arguments: str) -> int:
    return main(["sim", "paper", *arguments, "--workers", "1"])


def test_the_page_pictures_and_numbers_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--quick", "--size", "0.2", "--figures", "19,16", "--out", str(tmp_path)) == 0

    assert sorted(path.name for path in (tmp_path / "paper").iterdir()) == [
        "figure-16.png",
        "figure-19.png",
    ]
    text = (tmp_path / "paper.md").read_text()
    assert capsys.readouterr().out == text + "\n"
    assert text.index("## Figure 19") < text.index("## Figure 16")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--figures", "12,3"), "'3'; expected some of 4, 5, 6, 7, 11, 12"),
        (("--seeds", "0"), "is '0'; expected a whole number above zero"),
        (("--size", "-1"), "is '-1'; expected a number above zero"),
    ],
)
def test_a_bad_argument_is_explained(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(*arguments)

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_traces_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--figures", "12", "--data", str(tmp_path), "--out", str(tmp_path / "out")) == 2

    assert "sharegpt_en.jsonl.gz cannot be read" in capsys.readouterr().err
