"""The library under sanitizers: a C++ program drives it from several threads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from tests.kernels import stand_in
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
    includes = [f"-I{SOURCES / 'include'}", f"-I{SOURCES / 'src'}"]
    try:
        stand_in.compile_once([cxx, *flags, *includes, *map(str, inputs), "-o", str(program)], program)
    except stand_in.StandInError as error:
        if "cannot find" in str(error):
            pytest.skip(f"the compiler has no {sanitizers} sanitizer")
        raise
    done = subprocess.run([str(program), "15"], capture_output=True, text=True, check=False)
    if "FATAL: ThreadSanitizer: unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's memory layout is not one that the thread sanitizer knows")
    assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stderr
