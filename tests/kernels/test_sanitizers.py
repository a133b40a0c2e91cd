"""The library under sanitizers: a C++ program drives it from several threads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from tests.kernels.conftest import ROOT

SOURCES = ROOT / "csrc"


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_driver_is_clean(builder: ModuleType, tmp_path: Path, sanitizers: str) -> None:
    """No sanitizer finds anything, and every byte is in its place."""
    cxx = builder.find_toolchain().cxx
    if cxx is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "driver"
    flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g1", "-O0", "-std=c++17", "-pthread"]
    inputs = [*sorted((SOURCES / "src").glob("*.cpp")), SOURCES / "tests" / "driver.cpp"]
    made = subprocess.run(
        [
            cxx,
            *flags,
            f"-I{SOURCES / 'include'}",
            f"-I{SOURCES / 'src'}",
            *map(str, inputs),
            "-o",
            str(program),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in made.stderr:
        pytest.skip(f"the compiler has no {sanitizers} sanitizer")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([str(program), "15"], capture_output=True, text=True, check=False)
    if "FATAL: ThreadSanitizer: unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's memory layout is not one that the thread sanitizer knows")
    assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stderr
