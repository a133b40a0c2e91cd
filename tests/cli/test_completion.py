"""`autellix completion`: what the shells themselves complete."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from autellix_backend.cli import completion
from autellix_backend.cli.commands import COMMANDS
from autellix_backend.cli.main import main, make_parser

SHELLS = ("bash", "zsh", "fish")


@cache
def script_of(shell: str) -> str:
    """Return a shell's script, which takes all commands to be loaded."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["completion", shell]) == 0
    return out.getvalue()


@pytest.fixture
def bash_script(tmp_path: Path) -> Path:
    path = tmp_path / "autellix.bash"
    path.write_text(script_of("bash"))
    return path


def completed(script: Path, line: str) -> list[str]:
    """Return what bash offers for the last word of a line."""
    code = (
        f'source "{script}"\n'
        f"COMP_WORDS=({line.removesuffix(' ')}{' ' + chr(34) * 2 if line.endswith(' ') else ''})\n"
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
        '_autellix\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("autellix se", ["serve"]),
        ("autellix ", [*COMMANDS]),
        ("autellix serve --poli", ["--policy"]),
        ("autellix serve model --port 1 --max-num", ["--max-num-seqs"]),
        ("autellix config ", ["show", "check"]),
        ("autellix config check --wi", []),
        ("autellix ps --state ", ["running", "waiting", "idle", "ending"]),
        ("autellix ps --state w", ["waiting"]),
        ("autellix engines dr", ["drain"]),
        ("autellix completion ", list(SHELLS)),
    ],
)
def test_bash_completes(bash_script: Path, line: str, expected: list[str]) -> None:
    """Subcommands at each level, options of the subcommand, and the choices of options and arguments."""
    assert set(expected) <= set(completed(bash_script, line))
    if line[-1] != " " or "--" in line:
        assert completed(bash_script, line) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    needs(shell)
    path = tmp_path / "script"
    path.write_text(script_of(shell))
    subprocess.run([shell, "-n", str(path)], check=True)


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")


def output_of(shell: str, code: str, folder: Path) -> list[str]:
    """Run code in an empty folder, for shells offer the names of files too."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run([shell, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return done.stdout.split()


def test_fish_completes(tmp_path: Path) -> None:
    needs("fish")
    path = tmp_path / "autellix.fish"
    path.write_text(script_of("fish"))

    def completed(line: str) -> list[str]:
        return output_of("fish", f"source {path}; complete -C '{line}'", tmp_path / "empty")

    assert completed("autellix ps --state w") == ["waiting"]
    assert completed("autellix config ch") == ["check"]
    assert completed("autellix serve --poli") == ["--policy"]


def test_zsh_completes(tmp_path: Path) -> None:
    """Without a terminal: what the function would add is printed."""
    needs("zsh")
    path = tmp_path / "autellix.zsh"
    path.write_text(script_of("zsh"))

    def completed(*words: str) -> list[str]:
        stubs = 'compdef() { : }; _files() { : }; compadd() { shift; print -l -- "$@" }'
        line = f"words=({' '.join(words)} ''); CURRENT={len(words) + 1}"
        return output_of("zsh", f"{stubs}\nsource {path}\n{line}\n_autellix", tmp_path / "empty")

    assert completed("autellix", "ps", "--state") == ["running", "waiting", "idle", "ending"]
    assert completed("autellix", "config")[:2] == ["show", "check"]
    assert "--policy" in completed("autellix", "serve")


def test_fish_knows_each_option_of_each_command() -> None:
    lines = script_of("fish").splitlines()
    assert any("__fish_seen_subcommand_from ps'" in line and "-l wide" in line for line in lines)
    assert any("-l state -x -a 'running waiting idle ending'" in line for line in lines)
    assert any("seen_subcommand_from config; and" in line and line.endswith("'show check'") for line in lines)


def test_a_command_without_its_packages_is_still_a_word() -> None:
    """Its options are left out."""
    found = {level.path: level for level in completion.levels(make_parser(["ps"]))}
    assert "serve" in found[()].words
    assert found["serve",].words == ("-h", "--help")
    assert "--wide" in found["ps",].words
