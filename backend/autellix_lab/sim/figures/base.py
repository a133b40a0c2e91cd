"""The parts of a figure: panels to draw, claims to judge, tables to print."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from autellix_lab.workload.statistics import Interval

EQUAL_WITHIN = 0.02
"""Ratios that differ from one by less are equal, however narrow their interval."""


class Verdict(StrEnum):
    """How our number compares with the paper's."""

    REACHED = "reached"
    DIRECTION = "direction equal"
    NOT_REACHED = "not reached"
    OPEN = "open"
    """The interval over the seeds includes no gain."""
    NOT_BRACKETED = "not bracketed"
    """The two curves have no latency in common."""
    NOT_SIMULATED = "cannot be simulated"


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """One line of the table of claims."""

    what: str
    paper: str
    ours: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel: points (x, y with its interval over the seeds) in order of x."""

    label: str
    points: tuple[tuple[float, Interval], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes; with `is_bars`, one series drawn as bars that are named by `groups`."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    is_log_y: bool = False
    is_bars: bool = False
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A call that holds a slot in the units from `start` to `end`."""

    slot: int
    start: float
    end: float
    program: int
    label: str


@dataclass(frozen=True, slots=True)
class Gantt:
    """The calls in each slot over time."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure and the paper's claims that it tests."""

    name: str
    """As on the command line, such as `12` or `today`."""
    title: str
    panels: tuple[Panel | Gantt, ...] = ()
    claims: tuple[PaperClaim, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    """The setting, and what it leaves out."""


def judge(ours: Interval | None, paper: float) -> Verdict:
    """Compare a gain, of which more is better, with the paper's.

    It is open if the interval holds 1 and the mean is not within EQUAL_WITHIN of it; of a single run, only
    the mean counts. None is a gain that could not be taken.
    """
    if ours is None:
        return Verdict.NOT_BRACKETED
    spread = ours.half_width if math.isfinite(ours.half_width) else 0.0
    if ours.mean < 1 + EQUAL_WITHIN:
        return Verdict.NOT_REACHED
    if ours.mean - spread <= 1:
        return Verdict.OPEN
    return Verdict.REACHED if ours.mean >= paper else Verdict.DIRECTION


def gain_claim(
    what: str, ours: Interval | None, paper: float, *, bound: str = "up to ", at: str = ""
) -> PaperClaim:
    """Return the claim of a gain: `bound` comes before the paper's number, `at` after ours."""
    return PaperClaim(what, f"{bound}{paper:g}x", shown(ours, unit="x") + at, judge(ours, paper))


def shown(value: Interval | None, digits: int = 2, unit: str = "") -> str:
    """Return a mean, with its half width if there are several runs."""
    if value is None:
        return "not bracketed"
    if not math.isfinite(value.half_width):
        return f"{value.mean:.{digits}f}{unit}"
    return f"{value.mean:.{digits}f}{unit} ± {value.half_width:.{digits}f}"
