"""Where the drills of what we ship may run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc")
OVERLAY = "mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=inner root"


@pytest.fixture
def can_make_namespaces(tmp_path: Path) -> None:
    """Skip the test where this user may not make namespaces."""
    script = "ip link add pods type bridge && mount -t tmpfs tmpfs . && cd . && mkdir upper inner root"
    try:
        made = subprocess.run(
            [*NAMESPACES, "sh", "-c", f"{script} && {OVERLAY}"],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if made.returncode:
        pytest.skip(f"no namespaces here: {made.stderr.decode().strip()}")
