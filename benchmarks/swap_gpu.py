"""Check and measure the CUDA back end on this machine's card: one command, within eight minutes, offline.

Builds two programs from the sources. The first is the test that also runs over the stand-in for CUDA: an
engine's writes and jobs in both directions, every byte compared with a model. The second times, for sizes of
pages and numbers of blocks, in both directions: a copy per page, one batch call of the driver, a kernel that
reads or writes host memory itself, and the library's strategies, each checked byte for byte first; then a
small job behind a large one, and a kernel that keeps the card's memory busy beside each way to copy. Needs
nvcc and a C++ compiler; nothing is fetched.

    python benchmarks/swap_gpu.py [--json FILE] [--stand-in]

Where the card's machine has no compiler, build on another one, and take the folder along:

    python benchmarks/swap_gpu.py --build FOLDER --toolkit DIRECTORY
    python benchmarks/swap_gpu.py --built FOLDER

`--stand-in` is the dry run: no card, a few small jobs, and times that mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from swap_gpu_plan import CellResult, cells, verdicts

ROOT = Path(__file__).resolve().parents[1]
DRIVER = ROOT / "csrc" / "tests" / "cuda_driver.cpp"
ROUNDS = ROOT / "benchmarks" / "swap_gpu_rounds.cu"
PLAYS = {False: (("schedules", 200), ("threads", 20)), True: (("schedules", 10), ("threads", 2))}
"""Modes of the test and how often each plays, by whether the run is dry."""
ROUNDS_OF_CELL = {False: 15, True: 1}
TIMED_S = 180
"""After this time each cell gets no more than three rounds."""
MOST_S = 470
"""After this time a program is ended; what it has measured counts."""


def main() -> int:
    """Run, write the report, and return 1 where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=Path("swap-gpu.json"))
    parser.add_argument("--stand-in", action="store_true", help="no card: a dry run over the stand-in")
    parser.add_argument("--build", type=Path, help="build the programs into this folder, and do no more")
    parser.add_argument("--built", type=Path, help="the folder of an earlier --build")
    parser.add_argument("--toolkit", type=Path, help="a CUDA toolkit, with bin/nvcc, include and lib")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autellix-swap-") as temporary:
        folder = arguments.built or arguments.build or Path(temporary)
        try:
            if arguments.built is None:
                build_programs(folder, is_dry=arguments.stand_in, toolkit=arguments.toolkit)
            if arguments.build is not None:
                return 0
            report = measure(folder, is_dry=arguments.stand_in)
        except subprocess.CalledProcessError as error:
            print(f"gpu: {error}\n{error.stdout or ''}{error.stderr or ''}", file=sys.stderr)
            return 1
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(lines_of(report)))
    return 0


def build_programs(folder: Path, *, is_dry: bool, toolkit: Path | None = None) -> None:
    """Build the check and the measurement into a folder.

    Raises:
        subprocess.CalledProcessError: a compiler failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in (("driver", DRIVER), ("rounds", ROUNDS)):
        if is_dry:
            _build_dry(folder / name, source)
        else:
            _build_for_card(folder / name, source, toolkit)


def measure(folder: Path, *, is_dry: bool) -> dict[str, Any]:
    """Check and time with the programs in a folder; return the report.

    Raises:
        subprocess.CalledProcessError: a check failed.
    """
    ends = time.monotonic() + MOST_S
    plays = [
        _run(folder / "driver", mode, "1", str(count), ends=ends)[0].strip()
        for mode, count in (*PLAYS[is_dry], ("exit", 1))
    ]
    plan = "".join(f"{one.page_bytes} {one.blocks} {one.layers}\n" for one in cells(is_dry=is_dry))
    numbers = (str(ROUNDS_OF_CELL[is_dry]), str(TIMED_S), str(int(not is_dry)))
    lines, is_whole = _run(folder / "rounds", *numbers, given=plan, ends=ends)
    return {
        "is_dry": is_dry,
        "is_whole": is_whole,
        "plays": [line for line in plays if line],
        "lines": [json.loads(line) for line in lines.splitlines() if line.endswith("}")],
    }


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    """Return what to print: each aim by size of job, the missed ones first."""
    lines = report["lines"]
    device = next(one for one in lines if one["kind"] == "device")
    yield f"{device['name']}, CUDA runtime {device['runtime']}, driver {device['driver']}"
    if report["is_dry"]:
        yield "A dry run over the stand-in for CUDA: its times mean nothing."
    if not report["is_whole"]:
        yield "Ended before its time: not everything was measured."
    yield from report["plays"]
    for one in lines:
        if one["kind"] == "behind":
            yield (
                f"{one['direction']:5} of a block: {1e3 * one['alone_s']:.3f} ms alone, "
                f"{1e3 * one['behind_s']:.3f} ms right behind {one['large_mib']:g} MiB, "
                f"both {1e3 * one['large_s']:.3f} ms"
            )
    ceilings = {one["direction"]: one["gb_per_s"] for one in lines if one["kind"] == "ceiling"}
    for one in verdicts([_result(one) for one in lines if one["kind"] == "result"], ceilings):
        verdict = "reached" if one.is_reached else "MISSED "
        job = f"{one.direction:5} {one.page_kib:5} KiB {one.blocks:5} blocks"
        yield f"{verdict} {job}: {one.value:.2f} {one.aim}"


def _result(line: dict[str, Any]) -> CellResult:
    return CellResult(**{name: value for name, value in line.items() if name != "kind"})


def _build_for_card(made: Path, program: Path, toolkit: Path | None) -> None:
    builder = _module("build_native", ROOT / "scripts" / "build_native.py")
    tools, extra = builder.find_toolchain(), []
    if toolkit is not None:
        tools = builder.Toolchain(cxx=tools.cxx, nvcc=str(toolkit / "bin" / "nvcc"))
        extra = [f"-I{toolkit / 'include'}", f"-L{toolkit / 'lib'}"]
    words: list[str] = builder.command(ROOT, "cuda", tools, made, extra)
    # A program in place of the library: of the same sources by the same compilers.
    words = [word for word in words if word != "-shared" and "exports.map" not in word]
    words.remove("-Xlinker")
    subprocess.run([*words, str(program)], capture_output=True, text=True, check=True)


def _build_dry(made: Path, program: Path) -> None:
    stand_in = _module("stand_in", ROOT / "tests" / "kernels" / "stand_in.py")
    cxx = _module("build_native", ROOT / "scripts" / "build_native.py").find_toolchain().cxx
    if cxx is None:
        raise SystemExit("gpu: no C++ compiler")
    stand_in.build(cxx, made, program=program)


def _run(program: Path, *arguments: str, given: str = "", ends: float) -> tuple[str, bool]:
    """Return what a program prints, and whether it came to its end in time."""
    words = [str(program.resolve()), *arguments]
    most_s = max(1.0, ends - time.monotonic())
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, check=True, timeout=most_s)
    except subprocess.TimeoutExpired as error:
        # In bytes, whatever was asked for.
        return (error.stdout or b"").decode(), False
    return done.stdout, True


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
