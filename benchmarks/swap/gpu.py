"""Check and time the swap library on a GPU beside the other ways to move KV blocks, in one run.

Builds the CUDA library, checks every strategy byte for byte, measures the ceilings of pinned copies, and then
times, for sizes of pages and numbers of blocks, in both directions: a copy per page, one batch call of the
driver, a Triton kernel that reads or writes host memory itself, and the library's strategies. Then a GEMM as
of a decoding batch runs beside each. Times are from the call to the end of the last copy, the median of
rounds that take turns.

    python benchmarks/swap/gpu.py [--quick] [--dry-run] [--json FILE]

`--dry-run` needs no GPU: it prints the plan, checks the geometry, and sees that the library builds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from gpu_plan import KIB, CellResult, cells, job_of, summary

from autellix_backend.kernels.checks import check_job
from autellix_backend.kernels.job import Direction, Strategy
from autellix_backend.kernels.native import SwapLibrary

ROOT = Path(__file__).resolve().parents[2]


def build_library() -> SwapLibrary:
    """Compile the CUDA library for this run and load it.

    Raises:
        Exception: the builder's error, with the compiler's output.
    """
    builder = _builder()
    folder = Path(tempfile.mkdtemp(prefix="autellix-swap-"))
    made = folder / "libautellix_swap.so"
    builder.compile_library(builder.command(ROOT, "cuda", builder.find_toolchain(), made))
    return SwapLibrary(made)


def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_native", ROOT / "scripts" / "build_native.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def dry_run(*, is_quick: bool) -> None:
    """Print the plan, check its jobs, and build the library."""
    print(f"{'page':>9} {'blocks':>7} {'layers':>7} {'MiB':>9} {'pages':>9}")
    for cell in cells(is_quick=is_quick):
        for direction in Direction:
            check_job(job_of(cell, 1 << 40, 1 << 44, direction, Strategy.STAGED))
        print(
            f"{cell.page_bytes // KIB:>5} KiB {cell.blocks:>7} {cell.layers:>7}"
            f" {cell.bytes / (1 << 20):>9.2f} {cell.blocks * cell.layers:>9}"
        )
    begun_s = time.perf_counter()
    library = build_library()
    print(
        f"\nthe CUDA library builds in {time.perf_counter() - begun_s:.0f} s and loads;"
        f" device: {'present' if library.has('cuda') else 'none'}"
    )


def main() -> int:
    """Run, print, and return 1 where there is no GPU to run on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few cells")
    parser.add_argument("--dry-run", action="store_true", help="no GPU: plan, geometry and build")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    arguments = parser.parse_args()
    if arguments.dry_run:
        dry_run(is_quick=arguments.quick)
        return 0
    library = build_library()
    if not library.has("cuda"):
        print("no CUDA device; --dry-run works without one", file=sys.stderr)
        return 1
    # Torch with CUDA, and Triton: only where there is a device.
    from gpu_rounds import run_all

    report: dict[str, Any] = run_all(library, list(cells(is_quick=arguments.quick)), is_quick=arguments.quick)
    results: list[CellResult] = report["results"]
    print(
        f"{'':>5} {'page':>9} {'blocks':>6} {'contestant':<18}"
        f" {'us':>10} {'GB/s':>7} {'ceiling':>8} {'transfers':>9}"
    )
    for one in results:
        print(
            f"{one.direction:>5} {one.page_kib:>5} KiB {one.blocks:>6} {one.contestant:<18}"
            f" {one.seconds * 1e6:>10.1f} {one.gb_per_s:>7.2f} {one.share_of_ceiling:>8.0%}"
            f" {one.transfers or '':>9}"
        )
    print("\n".join(["", *summary(results), "", "GEMM beside it, time over time alone:"]))
    print("\n".join(f"{name:<28} {factor:.2f}x" for name, factor in report["slowdowns"].items()))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({**report, "results": [asdict(one) for one in results]}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
