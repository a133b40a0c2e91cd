"""The native library of the tests, built from the sources beside them, and the swappers over it."""

from __future__ import annotations

import fcntl
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from tests.kernels import stand_in

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.fallback import PythonSwapper
from autellix_backend.kernels.job import SwapOptions
from autellix_backend.kernels.native import SwapLibrary

ROOT = Path(__file__).resolve().parents[2]
# The smallest slots: a page of the tests then needs more than one.
OPTIONS = SwapOptions(slot_bytes=4096, slots=2)


@pytest.fixture(scope="session")
def builder() -> ModuleType:
    """Return the build script as a module."""
    spec = importlib.util.spec_from_file_location("build_native", ROOT / "scripts" / "build_native.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that all workers of one run share for what they compile, and the compiler."""

    path: Path
    cxx: str


@pytest.fixture(scope="session")
def shared(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Return the run's folder; skip where there is no compiler."""
    cxx = builder.find_toolchain().cxx
    if cxx is None:
        pytest.skip("no C++ compiler")
    root = tmp_path_factory.getbasetemp()
    return Folder(root.parent if root.name.startswith("popen-") else root, cxx)


@pytest.fixture(scope="session")
def library(builder: ModuleType, shared: Folder) -> SwapLibrary:
    """Return the CPU library of the sources as they are."""
    made = shared.path / "libautellix_swap.so"
    with (shared.path / "native.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            stand_in.compile_once(builder.command(ROOT, "cpu", builder.find_toolchain(), made), made)
    return SwapLibrary(made)


@pytest.fixture(scope="session")
def native(library: SwapLibrary) -> Iterator[Swapper]:
    """Yield a swapper of the native CPU back end."""
    swapper = library.open("cpu", OPTIONS)
    yield swapper
    swapper.close()


@pytest.fixture(scope="session")
def fallback() -> Iterator[Swapper]:
    """Yield a swapper in plain Python."""
    swapper = PythonSwapper()
    yield swapper
    swapper.close()


@pytest.fixture(scope="session", params=["native", "fallback"])
def swapper(request: pytest.FixtureRequest) -> Swapper:
    """Return each swapper in turn."""
    found: Swapper = request.getfixturevalue(request.param)
    return found
