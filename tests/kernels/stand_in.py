"""Programs over the stand-in for CUDA: `csrc/` as it is, compiled for the host, with what drives it.

What a compiler makes is kept over runs, while the compiler, its flags and every source stay the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "csrc" / "src"
STAND_IN = ROOT / "tests" / "kernels" / "cuda_stand_in"
DRIVER = ROOT / "csrc" / "tests" / "cuda_driver.cpp"
RUNTIMES = {"13.0": 13000, "12.8": 12080, "12.0": 12000}
"""Versions of CUDA's runtime: the batch call has another signature in 12.8, and none before."""
KEPT = ROOT / ".cache" / "kernels"
"""What compilers made in earlier runs."""
KEPT_S = 14 * 86400.0
"""What no run has used for so long goes."""
_READ = (ROOT / "csrc", STAND_IN, ROOT / "benchmarks")
_INCLUDES = [f"-I{folder}" for folder in (ROOT / "csrc" / "include", SOURCES, STAND_IN)]
_FLAGS = [
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-pthread",
    "-DAX_WITH_CUDA",
    "-DAX_STAND_IN",
    "-DAX_KERNEL_THREADS=8",
]


class StandInError(Exception):
    """A program could not be built; the message is the compiler's."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a program ended."""

    code: int
    out: str
    error: str


def backend_sources() -> list[Path]:
    """Return the library's sources, the CUDA back end among them."""
    return sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.cu")])


def build(
    cxx: str,
    made: Path,
    *,
    program: Path = DRIVER,
    replaced: Mapping[str, str] | None = None,
    extra: Sequence[str] = ("-O1", "-g1"),
    runtime: str = "13.0",
) -> Path:
    """Build a program over the stand-in, once for all processes that ask for the same file in a folder.

    Args:
        cxx: the C++ compiler.
        made: the file to make; beside it lies a folder with what is compiled.
        program: the source that has `main`.
        replaced: other text for sources of the library, by their names.
        extra: flags for the compiler and the linker.
        runtime: the version of CUDA that the stand-in is.

    Raises:
        StandInError: the compiler fails.
    """
    parts = made.parent / "cuda-parts"
    parts.mkdir(exist_ok=True)
    with _locked(parts / f"{made.name}.lock"):
        if not made.exists():
            flags = [*_FLAGS, f"-DCUDART_VERSION={RUNTIMES[runtime]}", *extra]
            objects = []
            for path in sorted([*STAND_IN.glob("*.cpp"), program, *backend_sources()]):
                text = (replaced or {}).get(path.name, path.read_text())
                objects.append(_compiled(cxx, parts, path, text, flags))
            unfinished = made.with_suffix(".new")
            _run([cxx, *flags, *map(str, objects), "-o", str(unfinished)])
            unfinished.rename(made)
    return made


def _compiled(cxx: str, parts: Path, path: Path, text: str, flags: Sequence[str]) -> Path:
    # Most sources do not care for the version, and are compiled once for all.
    used = flags if "CUDART_VERSION" in text else [flag for flag in flags if "CUDART_VERSION" not in flag]
    key = hashlib.sha256("\0".join([text, *used]).encode()).hexdigest()[:16]
    made = parts / f"{path.stem}-{key}.o"
    with _locked(parts / f"{made.name}.lock"):
        if not made.exists():
            source = parts / f"{path.stem}-{key}.cpp"  # `.cu` files are C++ here
            source.write_text(text)
            words = [cxx, *used, *_INCLUDES, f"-I{path.parent}", "-c", str(source), "-o"]
            # Coverage writes a second file beside the object.
            if "--coverage" in used:
                _run([*words, str(made)])
            else:
                compile_once([*words, str(made)], made, inputs=[source])
    return made


def compile_once(words: Sequence[str], made: Path, inputs: Sequence[Path] = ()) -> None:
    """Run a compiler, or copy what it made of the same sources in this run or an earlier one.

    Args:
        words: the compiler's command line.
        made: its output, as named in `words`.
        inputs: what it reads of the folder of `made`; the project's own sources are known.

    Raises:
        StandInError: the compiler fails.
    """
    folder = str(made.parent)
    digest = hashlib.sha256(_sources_digest(words[0]))
    # The run's folder has another name each time.
    digest.update("\0".join(word.replace(folder, "") for word in words).encode())
    for path in inputs:
        digest.update(b"\0" + path.read_bytes())
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / digest.hexdigest()
    with _locked(kept.with_suffix(".lock")):
        if not kept.exists():
            _run(words)
            unfinished = kept.with_suffix(".new")
            shutil.copy(made, unfinished)
            unfinished.rename(kept)
        else:
            os.utime(kept)
            shutil.copy(kept, made)


@functools.cache
def _sources_digest(cxx: str) -> bytes:
    now = time.time()
    for kept in KEPT.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if kept.stat().st_mtime < now - KEPT_S:
                kept.unlink()
    digest = hashlib.sha256()
    version = subprocess.run([cxx, "-v"], capture_output=True, check=False)
    digest.update(version.stdout + version.stderr)
    for folder in _READ:
        for path in sorted(folder.rglob("*")):
            if path.suffix in {".cpp", ".cu", ".h", ".hpp", ".map"}:
                digest.update(f"\0{path}\0".encode() + path.read_bytes())
    return digest.digest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(program: Path, *arguments: object, **environment: str) -> Result:
    """Run a program to its end."""
    done = subprocess.run(
        [str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return Result(code=done.returncode, out=done.stdout, error=done.stderr)


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StandInError(done.stderr)
