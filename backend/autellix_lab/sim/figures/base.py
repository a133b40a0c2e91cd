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


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """One line of the table of claims."""

    what: str
    paper: str
    ours: str
    verdict: Verdict

    @classmethod
    def of(
        cls, what: str, paper: str, ours: str, *, is_reached: bool, has_direction: bool = False
    ) -> PaperClaim:
        """Return a claim that is not a gain, with its verdict."""
        verdict = Verdict.DIRECTION if has_direction else Verdict.NOT_REACHED
        return cls(what, paper, ours, Verdict.REACHED if is_reached else verdict)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel: points (x, y with its interval over the seeds) in order of x."""

    label: str
    points: tuple[tuple[float, Interval], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    is_log_y: bool = False


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
    """As on the command line: the paper's number."""
    title: str
    panels: tuple[Panel, ...] = ()
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


def gain_claim(what: str, ours: Interval | None, paper: float, stated: str = "") -> PaperClaim:
    """Return the claim of a gain of up to `paper`, or as the paper states it."""
    return PaperClaim(what, stated or f"up to {paper:g}x", shown(ours, unit="x"), judge(ours, paper))


def shown(value: Interval | None, digits: int = 2, unit: str = "") -> str:
    """Return a mean, with its half width if there are several runs."""
    if value is None:
        return "not bracketed"
    if not math.isfinite(value.half_width):
        return f"{value.mean:.{digits}f}{unit}"
    return f"{value.mean:.{digits}f}{unit} ± {value.half_width:.{digits}f}"
