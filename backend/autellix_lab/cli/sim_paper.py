"""`autellix sim paper`: simulate the paper's figures, draw them, and compare its claims."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from autellix_backend.cli.arguments import above_zero, count
from autellix_lab.cli.arguments import InputError, adder, names_of
from autellix_lab.cli.console import lab_extra, make_console, progress_bars
from autellix_lab.sim.experiment import Sweep, SweepResult, run_sweep
from autellix_lab.sim.figures.base import Figure
from autellix_lab.sim.figures.catalogue import FIGURES
from autellix_lab.sim.figures.drawing import draw
from autellix_lab.sim.figures.page import page
from autellix_lab.sim.figures.pools import MAX_CONTEXT_TOKENS, TRACE_FILES, generated_pools, read_pools
from autellix_lab.sim.figures.study import Study

DEFAULT_SEEDS = 5
QUICK_SHARE = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = adder(parser)
    add("--figures", "figures to make", partial(names_of, tuple(FIGURES)), tuple(FIGURES), metavar="N,N")
    add("--seeds", "runs of each point, each with its own seed", count, DEFAULT_SEEDS, metavar="N")
    add("--size", "factor on the number of programs of a run", above_zero, 1.0, metavar="X")
    add(
        "--data",
        f"folder of recorded traces to use in place of generated ones: {_files()}",
        Path,
        metavar="DIR",
    )
    quick = "one seed, few programs: shows that all parts work"
    parser.add_argument("--quick", action="store_true", help=quick)
    add("--workers", "processes (default: all cores)", count, metavar="N")
    add("--out", "folder of the page and its pictures", Path, Path("paper-results"), metavar="DIR")


def run(args: argparse.Namespace) -> int:
    """Make the figures; 0 on success, 2 for input that cannot be used.

    Raises:
        InputError: if a package is missing or a value cannot be used.
        OSError: if a file cannot be read or written.
    """
    try:
        study, source = _study(args)
        figures = _make(args.figures, study, args.workers or os.cpu_count() or 1)
        with lab_extra("drawing figures"):
            shown = page(figures, study, source, _draw_all(figures, args.out))
    except ValueError as error:
        raise InputError(str(error)) from error
    (args.out / "paper.md").write_text(shown, encoding="utf-8")
    print(shown)
    return 0


def _study(args: argparse.Namespace) -> tuple[Study, str]:
    share = QUICK_SHARE if args.quick else 1.0
    seeds = tuple(range(1 if args.quick else args.seeds))
    if args.data is None:
        pools, source = generated_pools(0, share), "generated after the paper's workloads table"
    else:
        pools = read_pools(args.data, 0, share)
        source = (
            f"real traces ({_files()}) with contexts of up to {MAX_CONTEXT_TOKENS:,} tokens, without gaps"
        )
    return Study(pools=pools, seeds=seeds, size=args.size, is_quick=args.quick), source


def _make(names: Sequence[str], study: Study, workers: int) -> list[Figure]:
    results: dict[str, SweepResult] = {}
    with progress_bars(make_console(is_stderr=True)) as follow:

        def run_once(name: str, sweep: Sweep) -> SweepResult:
            if name not in results:
                results[name] = run_sweep(sweep, workers=workers, on_point=follow(name, sweep.runs))
            return results[name]

        return [FIGURES[name](study, run_once) for name in names]


def _draw_all(figures: Sequence[Figure], out: Path) -> dict[str, str]:
    """Write the pictures below `out`; return their paths from there by figure."""
    folder = out / "paper"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {figure.name: f"paper/figure-{figure.name}.png" for figure in figures if figure.panels}
    for figure in figures:
        if figure.name in pictures:
            draw(figure, out / pictures[figure.name])
    return pictures


def _files() -> str:
    return ", ".join(name for names in TRACE_FILES.values() for name in names)
