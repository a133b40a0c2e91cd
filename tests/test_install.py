"""What messages tell a user to install: each command is run, from this repository's last commit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from autellix_backend.install import CPU_ENGINE, REPOSITORY, pip_install

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
PRINTED = re.compile(r"pip_install\(\W(\w+)\W\)")
SOURCES = [path for folder in ("backend", "sdk", "integrations") for path in (ROOT / folder).rglob("*.py")]


def named_extras() -> set[str]:
    """Return the extras that a message anywhere in the product names."""
    return {extra for path in SOURCES for extra in PRINTED.findall(path.read_text(encoding="utf-8"))}


def test_no_message_names_a_package_that_no_index_has() -> None:
    """Whoever took that name there would have his code run by our users."""
    other = re.compile(r"pip install '?autellix(?!\S* @)")
    assert [path for path in SOURCES if other.search(path.read_text(encoding="utf-8"))] == []
    assert named_extras() == {"gateway", "lab", "otel", "ray", "redis", "smollm2", "vllm"}


def test_the_client_names_the_same_command() -> None:
    """It cannot import the server's constant."""
    source = (ROOT / "sdk/autellix/__main__.py").read_text(encoding="utf-8")
    said = "".join(re.findall(r'^ +"(.*)"$', source, re.MULTILINE))
    assert pip_install("gateway") in said


def test_a_release_expects_what_messages_say() -> None:
    """It tries them in environments that lack the extras."""
    script = (ROOT / "scripts/release").read_text(encoding="utf-8")
    expected = re.findall(r'^ +says "\$name" 2 "(.+?)" ', script, re.MULTILINE)
    messages = [pip_install(extra) for extra in ("gateway", "gateway", "lab")]
    assert [bool(re.search(*pair)) for pair in zip(expected, messages, strict=True)] == [True] * 3


def test_a_clone_has_the_target_that_installs_the_engine_for_a_cpu() -> None:
    assert f"`make install` in a clone of {REPOSITORY}" == CPU_ENGINE
    assert "\ninstall:\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.network
@pytest.mark.skipif(not UV.exists() or not (ROOT / ".git").exists(), reason="needs uv and the repository")
@pytest.mark.parametrize("extra", sorted(named_extras()))
def test_each_command_finds_all_that_it_would_install(extra: str) -> None:
    """Resolved as typed, but for the address of the repository, which git replaces by this one's."""
    pip, *words = shlex.split(pip_install(extra).strip("`"))
    variables = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": REPOSITORY,
        "AUTELLIX_NATIVE": "off",
    }
    done = subprocess.run(
        [str(UV), pip, *words, "--dry-run", "--python", sys.executable],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "dns error" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    assert "autellix-backend==" in done.stderr
