"""`autellix completion`: what the shells themselves make of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from autellix_backend.cli.main import main


def script_of(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return a shell's script."""
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("autellix se", "serve"),
        ("autellix serve --poli", "--policy"),
        ("autellix ps --state i", "in_engine"),
        ("autellix engines dr", "drain"),
    ],
)
def test_bash_completes(line: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Subcommands at each level, options, and the choices of options."""
    script = tmp_path / "autellix.bash"
    script.write_text(script_of("bash", capsys))
    words = line.split()
    code = (
        f'source "{script}"; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n'
        f'_shtab_autellix autellix "{words[-1]}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert expected in done.stdout.split(), done


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_accepts_its_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    path = tmp_path / "script"
    path.write_text(script_of(shell, capsys))
    subprocess.run([shell, "-n", str(path)], check=True)
