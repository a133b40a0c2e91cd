"""Measures how well the work of recorded programs is predicted from ended programs of their class.

    classes_study.py DATA        the traces in DATA/public, each source a class of its own

Programs come in a random order, LIVE of them at once: a program is predicted from those that ended before it
began. Work is that of prompt tokens outside the prefix cache and of output tokens (`core.boost`); a system
prompt that programs share counts as cached. Prints tables in Markdown, losing sources first.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean, median, pstdev

from autellix_backend.core.boost import work_of
from autellix_backend.core.classes import ClassKey, ClassReport, ClassSizes, ObservedProgram
from autellix_backend.gateway.recording.trace import CallTrace, ProgramTrace
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.workload.trace_files import read_traces

LIVE = 16
SHOWN_CALLS = (1, 2, 4, 8)
LEAST_PROGRAMS = 60
MOST_PROGRAMS = 1000
SHIFT = 4.0
"""Factor on all works from the middle of a run on, for the test of drift."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program as a gateway sees it."""

    source: str
    first_prompt_tokens: int
    attained: tuple[float, ...]
    """Work before each call, and in all."""

    def scaled(self, factor: float) -> Recorded:
        """Return the program with its works multiplied."""
        return Recorded(self.source, self.first_prompt_tokens, tuple(factor * work for work in self.attained))


@dataclass(slots=True)
class Errors:
    """Log-errors at the arrival of one call; those of the class's median are of the same programs."""

    predicted: list[float] = field(default_factory=list)
    by_median: list[float] = field(default_factory=list)
    log_works: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)


def recorded(program: ProgramTrace) -> Recorded:
    """Return what a gateway sees of a program."""
    attained = [0.0]
    for call in program.calls:
        attained.append(attained[-1] + _work(call, program.system_prefix_tokens or 0))
    return Recorded(program.source, program.calls[0].prefill_tokens, tuple(attained))


def _work(call: CallTrace, system_tokens: int) -> float:
    cached = max(call.shared_prefix_tokens, min(system_tokens, call.prefill_tokens))
    return work_of(call.prefill_tokens - cached, call.decode_tokens)


class Run:
    """Programs that begin in order, each ending when LIVE later ones have begun."""

    def __init__(self, *, is_one_class: bool = False) -> None:
        self.sizes = ClassSizes()
        self.errors: dict[int, Errors] = defaultdict(Errors)
        self._is_one_class = is_one_class
        self._live: deque[tuple[ObservedProgram, Recorded]] = deque()

    def add(self, program: Recorded) -> None:
        """Begin a program and predict it, and end the one that began LIVE programs before."""
        if len(self._live) == LIVE:
            ended, truth = self._live.popleft()
            self.sizes.on_end(ended, truth.attained[-1])
        key = ClassKey("", "" if self._is_one_class else program.source)
        live = ObservedProgram(key, program.first_prompt_tokens)
        self._live.append((live, program))
        report = next((report for report in self.sizes.reports() if report.key == key), None)
        for finished, attained in enumerate(program.attained[:-1]):
            self.sizes.on_call(live, finished_calls=finished, attained_work=attained)
            if finished + 1 in SHOWN_CALLS and finished in live.points:
                self._note(self.errors[finished + 1], live, program.attained[-1], report, finished)

    def _note(
        self, errors: Errors, live: ObservedProgram, work: float, report: ClassReport | None, finished: int
    ) -> None:
        predicted = live.points[finished].predicted
        if predicted is None or report is None or report.median_work is None:
            return
        errors.predicted.append(math.log(predicted / work))
        errors.by_median.append(math.log(report.median_work / work))
        errors.log_works.append(math.log(work))
        if any(error.is_predicted for error in report.errors if error.call == finished + 1):
            errors.used.append(errors.predicted[-1])


def study(programs: Sequence[Recorded], seeds: Iterable[int], *, is_one_class: bool = False) -> list[Run]:
    """Return one run per seed."""
    runs = []
    for seed in seeds:
        run = Run(is_one_class=is_one_class)
        for program in random.Random(seed).sample(programs, min(len(programs), MOST_PROGRAMS)):
            run.add(program)
        runs.append(run)
    return runs


def row(title: str, programs: Sequence[Recorded], runs: Sequence[Run]) -> tuple[float, tuple[str, ...]]:
    """Return a source's line, after the share of its spread that the error at the first call is."""
    cells = []
    for call in SHOWN_CALLS:
        errors = [run.errors[call] for run in runs]
        predicted = list(chain.from_iterable(item.predicted for item in errors))
        if len(predicted) < LEAST_PROGRAMS:
            cells.append("-")
            continue
        by_median = list(chain.from_iterable(item.by_median for item in errors))
        spread = pstdev(chain.from_iterable(item.log_works for item in errors))
        used = sum(len(item.used) for item in errors) / len(predicted)
        cells.append(f"{_rms(predicted):.2f} / {_rms(by_median):.2f} / {spread:.2f} ({used:.0%})")
    first = [error for run in runs for error in run.errors[1].predicted]
    spread = pstdev(log_work for run in runs for log_work in run.errors[1].log_works)
    return _rms(first) / spread, (title, str(len(programs)), *cells)


def drift_row(title: str, programs: Sequence[Recorded], seeds: Iterable[int]) -> tuple[str, ...]:
    """Return the drifts found without any, and how many ended programs it takes to find one."""
    false_alarms, ended, delays = 0, 0, []
    for seed in seeds:
        run = Run()
        order = random.Random(seed).choices(programs, k=2 * MOST_PROGRAMS)
        for program in order[:MOST_PROGRAMS]:
            run.add(program)
        before = run.sizes.reports()[0].drifts
        false_alarms += before
        ended += MOST_PROGRAMS
        for count, program in enumerate(order[MOST_PROGRAMS:]):
            run.add(program.scaled(SHIFT))
            if run.sizes.reports()[0].drifts > before:
                delays.append(max(0, count - LIVE))
                break
    found = f"{len(delays)}/{ended // MOST_PROGRAMS}"
    delay = f"{median(delays):.0f}" if delays else "-"
    return (title, f"{1000 * false_alarms / ended:.1f}", found, delay)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))


def main() -> None:
    """Run the study from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder whose public/ has the traces")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    sources = {}
    for path in sorted((arguments.data / "public").glob("*.jsonl.gz")):
        programs = [recorded(program) for program in read_traces(path)]
        if len(programs) >= LEAST_PROGRAMS:
            sources[path.name.partition(".")[0]] = programs
    if not sources:
        print(f"No traces in {arguments.data / 'public'}: nothing to study.")
        return
    seeds = range(arguments.seeds)
    rows = [row(name, programs, study(programs, seeds)) for name, programs in sources.items()]
    share = min(map(len, sources.values()))
    mixed = [program for programs in sources.values() for program in programs[:share]]
    rows.sort(key=lambda item: -item[0])
    rows.append(row("all, each a class", mixed, study(mixed, seeds)))
    rows.append(row("all in one class", mixed, study(mixed, seeds, is_one_class=True)))
    titles = ("source", "programs", *(f"call {call}" for call in SHOWN_CALLS))
    print("\n".join(markdown_table(titles, [cells for _, cells in rows])), end="\n\n")
    drift = [drift_row(name, programs, seeds) for name, programs in sources.items()]
    titles = ("source", "false alarms per 1,000 programs", "shifts found", "programs until found, median")
    print("\n".join(markdown_table(titles, drift)))


if __name__ == "__main__":
    main()
