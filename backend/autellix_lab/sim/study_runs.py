"""Runs of a study, kept one by one in a file of JSON lines, and their ratios to a base.

An interrupted study continues where it stopped, and its tables are made from the file alone. To repeat runs,
delete their lines.
"""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from autellix_lab.sim.experiment import COMPARED, Sweep, in_processes, run_sweep
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.workload.statistics import Interval, confidence_interval
from autellix_lab.workload.trace import ProgramTrace

BASE = "fcfs"
"""The case of all ratios, unless a study has another."""
STANDARD_ERRORS = 2.0
"""Of the differences of two cases, seed by seed: a smaller mean difference is no gain and no loss."""
KEPT = (
    *COMPARED,
    "makespan_s",
    "utilisation",
    "cached_share",
    "loaded_share",
    "preemptions_per_call",
    "calls_per_min",
)
"""Metrics of a run that are written down, of those that it has."""
MORE_IS_BETTER = frozenset({"cached_share", "calls_per_min"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What runs with different schedulers and seeds have in common."""

    workload: str
    kv_share: float = 1.0
    """KV memory, as a share of the engine's."""
    shares_prefixes: bool = True
    arrivals: str = "poisson"
    """One of experiment.SIM_ARRIVALS, or experiment.CLOSED."""
    load: float
    """Offered load; in a closed loop, the programs that are always present."""
    gaps: str = ""
    """What is played between calls; empty for nothing."""
    model: str = ""
    """The engine's preset; empty where a study has one engine."""
    engines: int = 1
    host_gb: float = 0.0
    """Host memory of each engine for KV blocks."""

    @property
    def memory(self) -> str:
        """The KV memory, as tables show it."""
        return f"KV {self.kv_share:g}" + ("" if self.shares_prefixes else ", private")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """A simulation that was made."""

    cell: Cell
    case: str
    """The scheduler's name."""
    seed: int
    metrics: Mapping[str, float]
    """KEPT ones."""
    code: str
    """Version of the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Runs that are wanted: each case with each seed in each cell."""

    cells: Sequence[Cell]
    cases: Sequence[str]
    seeds: Sequence[int]


@dataclass(frozen=True, slots=True)
class Pool:
    """The programs from which a cell's runs draw, and how many each draws."""

    programs: Sequence[ProgramTrace]
    count: int
    rate_per_s: float | None = None
    """Programs per second at a load of 1; None for what full batches finish with a perfect prefix cache."""


class RunFile:
    """Runs by cell, case and seed, and the file in which they are."""

    def __init__(self, path: Path, base: str = BASE) -> None:
        """Read the runs that the file has, if it exists; `base` is the case of all ratios."""
        self.runs: dict[tuple[Cell, str, int], CellRun] = {}
        self._path = path
        self._base = base
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                fields = json.loads(line)
                self._keep(CellRun(**(fields | {"cell": Cell(**fields["cell"])})))

    def add(self, run: CellRun) -> None:
        """Keep a run, also in the file."""
        self._keep(run)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(run)) + "\n")

    def _keep(self, run: CellRun) -> None:
        self.runs[run.cell, run.case, run.seed] = run

    def seeds(self, cell: Cell, case: str) -> tuple[int, ...]:
        """Return the seeds for which a case and its base were run."""
        found = [seed for where, name, seed in self.runs if (where, name) == (cell, case)]
        return tuple(sorted(seed for seed in found if (cell, self._base, seed) in self.runs))

    def values(self, cell: Cell, case: str, metric: str) -> dict[int, float]:
        """Return a case's ratios to the base by seed."""
        found = {}
        for seed in self.seeds(cell, case):
            base = self.runs[cell, self._base, seed].metrics[metric]
            found[seed] = self.runs[cell, case, seed].metrics[metric] / base if base else 1.0
        return found

    def ratios(
        self, cell: Cell, case: str, metrics: Sequence[str] = COMPARED, seeds: Iterable[int] | None = None
    ) -> list[Interval]:
        """Return the means over seeds of a case's ratios to the base; none if it was not run.

        Args:
            cell: its setting.
            case: its scheduler.
            metrics: those compared.
            seeds: only these, of those that were run; all by default.
        """
        chosen = set(self.seeds(cell, case))
        if seeds is not None:
            chosen &= set(seeds)
        if not chosen:
            return []
        by_metric = [self.values(cell, case, metric) for metric in metrics]
        return [confidence_interval([ratios[seed] for seed in sorted(chosen)]) for ratios in by_metric]

    def figures(
        self, cell: Cell, case: str, metrics: Sequence[str] = COMPARED, seeds: Iterable[int] | None = None
    ) -> str:
        """Return the means of a case's ratios, and the largest of their standard deviations over the seeds.

        Args:
            cell: its setting.
            case: its scheduler.
            metrics: those shown.
            seeds: only these, of those that were run; all by default.
        """
        chosen = set(self.seeds(cell, case))
        if seeds is not None:
            chosen &= set(seeds)
        columns = [[self.values(cell, case, metric)[seed] for seed in chosen] for metric in metrics]
        shown = " ".join(f"{fmean(column):.2f}" for column in columns if column)
        return f"{shown} ± {max(map(stdev, columns)):.2f}" if len(chosen) > 1 else shown

    def behind(self, cell: Cell, case: str, metrics: Iterable[str]) -> dict[str, dict[str, float]]:
        """Return, by metric, the other cases that are better than this one, and how many times, best first.

        Only those count whose mean difference, over the seeds that both have, is more than STANDARD_ERRORS of
        it. One seed shows nothing.
        """
        others = sorted({name for where, name, _ in self.runs if where == cell} - {case})
        found: dict[str, dict[str, float]] = {}
        for metric in metrics:
            sign = -1.0 if metric in MORE_IS_BETTER else 1.0
            own = self.values(cell, case, metric)
            factors = {}
            for name in others:
                theirs = self.values(cell, name, metric)
                both = sorted(own.keys() & theirs.keys())
                if exceeds_noise([sign * (own[seed] - theirs[seed]) for seed in both]):
                    ratio = fmean(own[seed] for seed in both) / fmean(theirs[seed] for seed in both)
                    factors[name] = ratio**sign
            if factors:
                found[metric] = dict(sorted(factors.items(), key=lambda item: -item[1]))
        return found

    def codes(self, cases: Iterable[str]) -> list[str]:
        """Return the versions of the code with which these cases were run."""
        names = set(cases)
        return sorted({run.code for run in self.runs.values() if run.case in names})


def exceeds_noise(differences: Sequence[float]) -> bool:
    """Return whether the mean of differences by seed is more than STANDARD_ERRORS of it above zero."""
    if len(differences) < 2:
        return False
    return fmean(differences) > STANDARD_ERRORS * stdev(differences) / math.sqrt(len(differences))


def cells_of(
    workloads: Iterable[str],
    loads: Iterable[float],
    kv_shares: Iterable[float] = (1.0,),
    *,
    shares_prefixes: bool = True,
    arrivals: str = "poisson",
    gaps: str = "",
) -> list[Cell]:
    """Return the cells of all combinations."""
    loads, kv_shares = tuple(loads), tuple(kv_shares)
    return [
        Cell(
            workload=workload,
            kv_share=kv_share,
            shares_prefixes=shares_prefixes,
            arrivals=arrivals,
            load=load,
            gaps=gaps,
        )
        for workload in workloads
        for kv_share in kv_shares
        for load in loads
    ]


def run_blocks(
    blocks: Iterable[Block],
    runs: RunFile,
    *,
    pool_of: Callable[[Cell], Pool],
    settings_of: Callable[[Cell, str], SimSettings],
    workers: int = 1,
) -> Iterator[CellRun]:
    """Make the runs that the file lacks, and yield each.

    Args:
        blocks: wanted; earlier ones first.
        runs: of earlier, to which the new ones are added.
        pool_of: returns the programs of a cell.
        settings_of: returns the settings of a case, for an engine with all of its memory.
        workers: processes.
    """
    code = code_version()
    for block in blocks:
        wanted = [
            (cell, seed, [case for case in block.cases if (cell, case, seed) not in runs.runs])
            for cell in block.cells
            for seed in block.seeds
        ]
        jobs = ((cell, seed, cases) for cell, seed, cases in wanted if cases)
        sweeps = ((cell, _sweep(cell, seed, cases, pool_of, settings_of)) for cell, seed, cases in jobs)
        for found in in_processes(_run, sweeps, workers):
            for cell, case, seed, metrics in found:
                run = CellRun(cell=cell, case=case, seed=seed, metrics=metrics, code=code)
                runs.add(run)
                yield run


def code_version() -> str:
    """Return the commit of the code, with a plus sign if it has been changed since; `unknown` without git."""
    command = ["git", "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"]
    folder = Path(__file__).parent
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


_Found = tuple[Cell, str, int, dict[str, float]]


def _sweep(
    cell: Cell,
    seed: int,
    cases: Sequence[str],
    pool_of: Callable[[Cell], Pool],
    settings_of: Callable[[Cell, str], SimSettings],
) -> Sweep:
    pool = pool_of(cell)
    chosen = {case: settings_of(cell, case) for case in cases}
    return Sweep(
        programs=pool.programs,
        count=pool.count,
        cases={
            case: replace(
                settings, model=settings.model.with_kv(cell.kv_share), shares_prefixes=cell.shares_prefixes
            )
            for case, settings in chosen.items()
        },
        loads=(cell.load,),
        seeds=(seed,),
        arrivals=cell.arrivals,
        rate_per_s=pool.rate_per_s,
    )


def _run(job: tuple[Cell, Sweep]) -> list[_Found]:
    cell, sweep = job
    points = run_sweep(sweep).points
    return [
        (cell, point.case, point.seed, {name: point.metrics[name] for name in KEPT if name in point.metrics})
        for point in points
    ]
