"""Node programs of the tests, beside the newest packages from npm that they need."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
CACHE = FOLDER.parents[1] / ".cache/agent-clients/of-tests"
PACKAGES = ("openai@^7", "@anthropic-ai/sdk@^1", "ai@6", "@ai-sdk/openai@^3")
INSTALL_LIMIT_S = 120


def node_program(name: str) -> Path:
    """Return a program of this folder, copied beside its packages; skip the test where there are none."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Other workers of this run install the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install()
        return Path(shutil.copy(FOLDER / name, CACHE))


def _install() -> None:
    asked = CACHE / "asked.json"
    if asked.is_file() and json.loads(asked.read_text()) == list(PACKAGES):
        return
    shutil.rmtree(CACHE / "node_modules", ignore_errors=True)
    (CACHE / "package.json").write_text('{"private": true}')
    command = ("npm", "install", "--no-audit", "--no-fund", "--fetch-retries=1", *PACKAGES)
    try:
        subprocess.run(command, cwd=CACHE, check=True, capture_output=True, timeout=INSTALL_LIMIT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(CACHE / "node_modules", ignore_errors=True)
        pytest.skip(f"npm's registry has not given the packages: {error}")
    asked.write_text(json.dumps(PACKAGES))
