"""Check and measure the CUDA back end on the card of this machine: one command, within ten minutes, offline.

Builds two programs from the sources. The first is the test that also runs over the stand-in for CUDA: an
engine's writes and jobs in both directions, every byte compared with a model. The second times, for sizes of
pages and numbers of blocks, in both directions: a copy per page, one batch call of the driver, a kernel that
reads or writes host memory itself, and the library's strategies, each checked byte for byte first; then a
kernel that keeps the card's memory busy runs beside each. Needs nvcc and a C++ compiler; nothing is fetched.

    python benchmarks/swap_gpu.py [--json FILE] [--stand-in]

`--stand-in` is the dry run: no card, a few small jobs, and times that mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
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
TIMED_S = 300
"""After this time each cell gets no more than three rounds."""


def main() -> int:
    """Run, write the report, and return 1 where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=Path("swap-gpu.json"))
    parser.add_argument("--stand-in", action="store_true", help="no card: a dry run over the stand-in")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autellix-swap-") as folder:
        try:
            report = measure(Path(folder), is_dry=arguments.stand_in)
        except subprocess.CalledProcessError as error:
            print(f"gpu: {error}\n{error.stdout or ''}{error.stderr or ''}", file=sys.stderr)
            return 1
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(lines_of(report)))
    return 0


def measure(folder: Path, *, is_dry: bool) -> dict[str, Any]:
    """Build, check and time; return the report.

    Raises:
        subprocess.CalledProcessError: a compiler or a check failed.
    """
    build = _build_dry if is_dry else _build_for_card
    driver = build(folder / "driver", DRIVER)
    plays = [_run(driver, mode, "1", str(count)).strip() for mode, count in (*PLAYS[is_dry], ("exit", 1))]
    plan = "".join(f"{one.page_bytes} {one.blocks} {one.layers}\n" for one in cells(is_dry=is_dry))
    program = build(folder / "rounds", ROUNDS)
    lines = _run(program, str(ROUNDS_OF_CELL[is_dry]), str(TIMED_S), str(int(not is_dry)), given=plan)
    return {
        "is_dry": is_dry,
        "plays": [line for line in plays if line],
        "lines": [json.loads(line) for line in lines.splitlines()],
    }


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    """Return what to print: each aim by size of job, the missed ones first."""
    lines = report["lines"]
    device = next(one for one in lines if one["kind"] == "device")
    yield f"{device['name']}, CUDA runtime {device['runtime']}, driver {device['driver']}"
    if report["is_dry"]:
        yield "A dry run over the stand-in for CUDA: its times mean nothing."
    yield from report["plays"]
    ceilings = {one["direction"]: one["gb_per_s"] for one in lines if one["kind"] == "ceiling"}
    for one in verdicts([_result(one) for one in lines if one["kind"] == "result"], ceilings):
        verdict = "reached" if one.is_reached else "MISSED "
        job = f"{one.direction:5} {one.page_kib:5} KiB {one.blocks:5} blocks"
        yield f"{verdict} {job}: {one.value:.2f} {one.aim}"


def _result(line: dict[str, Any]) -> CellResult:
    return CellResult(**{name: value for name, value in line.items() if name != "kind"})


def _build_for_card(made: Path, program: Path) -> Path:
    builder = _module("build_native", ROOT / "scripts" / "build_native.py")
    words: list[str] = builder.command(ROOT, "cuda", builder.find_toolchain(), made)
    # A program in place of the library: of the same sources by the same compilers.
    words = [word for word in words if word != "-shared" and "exports.map" not in word]
    words.remove("-Xlinker")
    subprocess.run([*words, str(program)], capture_output=True, text=True, check=True)
    return made


def _build_dry(made: Path, program: Path) -> Path:
    stand_in = _module("stand_in", ROOT / "tests" / "kernels" / "stand_in.py")
    cxx = _module("build_native", ROOT / "scripts" / "build_native.py").find_toolchain().cxx
    if cxx is None:
        raise SystemExit("gpu: no C++ compiler")
    built: Path = stand_in.build(cxx, made, program=program)
    return built


def _run(program: Path, *arguments: str, given: str = "") -> str:
    done = subprocess.run([str(program), *arguments], input=given, capture_output=True, text=True, check=True)
    return done.stdout


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
