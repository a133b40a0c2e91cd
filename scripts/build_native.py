#!/usr/bin/env python3
"""Compile `csrc/` into the backend's `kernels/` folder if this machine can; else Python serves.

AUTELLIX_NATIVE=auto|cpu|cuda|off
    auto (default): CUDA where nvcc works, else the CPU back end alone, else nothing; cpu and cuda: that back
    end or an error; off: nothing, and an earlier build is removed.
CXX, NVCC
    The compilers to use.
Unchanged sources, flags and compilers are not compiled again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = Path("autellix_backend/kernels/libautellix_swap.so")
MODES = ("auto", "cpu", "cuda", "off")
WARNINGS = ("-Wall", "-Wextra")
# Machine code for the two data-centre generations, and PTX for later devices.
ARCHITECTURES = (
    "arch=compute_80,code=sm_80",
    "arch=compute_90,code=sm_90",
    "arch=compute_90,code=compute_90",
)
COMPILE_TIMEOUT_S = 600


class BuildError(Exception):
    """The library could not be built; the message has the missing part or the compiler's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The compilers of one build."""

    cxx: str | None
    nvcc: str | None


def find_toolchain() -> Toolchain:
    """Return the compilers of the environment's variables, or those on the path."""
    cxx = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return Toolchain(cxx=cxx, nvcc=os.environ.get("NVCC") or shutil.which("nvcc"))


def build(root: Path = ROOT, mode: str = "auto", tools: Toolchain | None = None) -> str:
    """Build by the mode and return the result: `cuda`, `cpu` or `off`.

    Raises:
        BuildError: the mode requires a back end that cannot be built here.
    """
    if mode not in MODES:
        raise BuildError(f"AUTELLIX_NATIVE is {mode!r}; expected one of {', '.join(MODES)}")
    if mode == "off":
        _remove(root)
        return "off"
    compilers = tools or find_toolchain()
    problems: list[str] = []
    for backend in ("cuda", "cpu") if mode == "auto" else (mode,):
        try:
            _build_one(root, backend, compilers)
        except BuildError as error:
            problems.append(f"{backend}: {error}")
        else:
            return backend
    # A library of older sources is worse than none.
    _remove(root)
    if mode != "auto":
        raise BuildError("; ".join(problems))
    return "off"


def library_path(root: Path) -> Path:
    """Return where the library goes, in the repository or in an sdist of the backend."""
    backend = root / "backend"
    return (backend if backend.is_dir() else root) / LIBRARY


def command(root: Path, backend: str, tools: Toolchain, output: Path, extra: Sequence[str] = ()) -> list[str]:
    """Return the compiler's command line for a back end.

    Raises:
        BuildError: the compiler is missing.
    """
    source = root / "csrc"
    common = [
        "-std=c++17",
        "-O2",
        f"-I{source / 'include'}",
        f"-I{source / 'src'}",
        "-shared",
        "-o",
        str(output),
    ]
    sources = [str(path) for path in sorted((source / "src").glob("*.cpp"))]
    exports = f"--version-script={source / 'src' / 'exports.map'}"
    host = ["-fPIC", "-fvisibility=hidden", *WARNINGS]
    if backend == "cpu":
        if tools.cxx is None:
            raise BuildError("no C++ compiler")
        linking = ["-pthread", f"-Wl,{exports}"] if sys.platform == "linux" else ["-pthread"]
        return [tools.cxx, *common, *host, *extra, *sources, *linking]
    if tools.nvcc is None:
        raise BuildError("no nvcc")
    if tools.cxx is None:
        raise BuildError("no C++ compiler for nvcc")
    kernels = [str(path) for path in sorted((source / "src").glob("*.cu"))]
    architectures = [flag for one in ARCHITECTURES for flag in ("-gencode", one)]
    device = ["-ccbin", tools.cxx, "-cudart", "static", "-DAX_WITH_CUDA", "--threads", "2", *architectures]
    return [
        tools.nvcc,
        *common,
        *device,
        "-Xcompiler",
        ",".join(host),
        *extra,
        *sources,
        *kernels,
        "-Xlinker",
        exports,
    ]


def compile_library(words: Sequence[str]) -> None:
    """Run a compiler.

    Raises:
        BuildError: with its output.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error
    if done.returncode:
        raise BuildError(
            f"{words[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}"
        )


def _build_one(root: Path, backend: str, tools: Toolchain) -> None:
    library = library_path(root)
    mark = _mark_path(root)
    fingerprint = _fingerprint(root, command(root, backend, tools, library))
    if library.exists() and mark.exists() and mark.read_text() == fingerprint:
        return
    # Build beside the old library and move, so that running processes keep theirs.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        compile_library(command(root, backend, tools, made))
        made.replace(library)
    mark.write_text(fingerprint)


def _mark_path(root: Path) -> Path:
    return library_path(root).with_suffix(".built")


def _remove(root: Path) -> None:
    library_path(root).unlink(missing_ok=True)
    _mark_path(root).unlink(missing_ok=True)


def _fingerprint(root: Path, words: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for path in sorted((root / "csrc").rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = (
        subprocess.run([words[0], "--version"], capture_output=True, check=False)
        if _is_program(words[0])
        else None
    )
    digest.update(version.stdout if version else b"")
    return digest.hexdigest()


def _is_program(name: str) -> bool:
    return shutil.which(name) is not None


def main() -> int:
    """Build by the environment's mode and print the result."""
    try:
        made = build(mode=os.environ.get("AUTELLIX_NATIVE", "auto"))
    except BuildError as error:
        print(f"build_native: {error}", file=sys.stderr)
        return 1
    print(f"swap kernel: {'none, the Python fallback serves' if made == 'off' else made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
