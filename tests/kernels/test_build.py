"""The build script makes what the machine can, and fails for want of a compiler only if it is asked to."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from tests.kernels.conftest import ROOT

from autellix_backend.kernels.errors import SwapError
from autellix_backend.kernels.job import SwapOptions
from autellix_backend.kernels.native import SwapLibrary
from autellix_backend.kernels.swap import open_swapper


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of what a build needs."""
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    (tmp_path / "backend" / "autellix_backend" / "kernels").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def hasty_cxx(builder: ModuleType, tmp_path: Path) -> str:
    """Return the C++ compiler, which does not optimize: that takes ten seconds."""
    cxx = builder.find_toolchain().cxx
    if cxx is None:
        pytest.skip("no C++ compiler")
    script = tmp_path / "hasty-cxx"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(cxx)} "$@" -O0\n')
    script.chmod(0o755)
    return str(script)


def test_a_compiler_makes_a_library_once(builder: ModuleType, tree: Path, hasty_cxx: str) -> None:
    """Without nvcc `auto` makes the CPU library once; one that its sources no longer make goes."""
    tools = builder.Toolchain(cxx=hasty_cxx, nvcc=None)
    library = builder.library_path(tree)
    assert builder.build(tree, "auto", tools) == "cpu"
    assert SwapLibrary(library).has("cpu")
    assert not SwapLibrary(library).has("cuda")
    made = library.stat()
    assert builder.build(tree, "auto", tools) == "cpu"
    assert library.stat() == made
    for source in (tree / "csrc" / "src").glob("*.cpp"):
        source.write_text("#error no")
    assert builder.build(tree, "auto", tools) == "off"
    assert not library.exists()


def test_no_compiler_leaves_the_fallback(builder: ModuleType, tree: Path) -> None:
    """`auto` goes on without a compiler; what is opened then is Python."""
    tools = builder.Toolchain(cxx=None, nvcc=None)
    assert builder.build(tree, "auto", tools) == "off"
    swapper = open_swapper(library=builder.library_path(tree))
    assert swapper.backend == "python"
    swapper.close()
    with pytest.raises(SwapError) as raised:
        open_swapper("cpu", library=builder.library_path(tree))
    assert raised.value.field == "backend"


@pytest.mark.parametrize("mode", ["cpu", "cuda", "gpu"])
def test_the_requested_back_end_is_built_or_refused(builder: ModuleType, tree: Path, mode: str) -> None:
    """A mode other than `auto` fails where it cannot be had, and an unknown one always."""
    with pytest.raises(builder.BuildError):
        builder.build(tree, mode, builder.Toolchain(cxx=None, nvcc=None))


def test_off_removes_the_library(builder: ModuleType, tree: Path) -> None:
    """`off` leaves no library of an earlier build behind."""
    library = builder.library_path(tree)
    library.write_bytes(b"old")
    assert builder.build(tree, "off") == "off"
    assert not library.exists()


def test_a_library_that_does_not_load_leaves_the_fallback(tmp_path: Path) -> None:
    """A broken file is as good as none."""
    broken = tmp_path / "libautellix_swap.so"
    broken.write_bytes(b"not a library")
    swapper = open_swapper(options=SwapOptions(), library=broken)
    assert swapper.backend == "python"
    swapper.close()
