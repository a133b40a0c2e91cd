"""The verdict on two runs of the same programs: faster, slower, or noise. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autellix_lab.bench.metrics import METRICS, ProgramOutcome
from autellix_lab.bench.report import TITLES
from autellix_lab.workload.statistics import confidence_interval, mean_of

MIN_PAIRS = 5
"""Programs in both runs below which there is no verdict."""
SAME_SPEED = 0.05
"""Step times within this share of each other are those of one machine at one speed."""
LATENCY, LATENCY_STEPS = "latency_s", "latency_steps"
COMPARED = ("latency_s", "token_latency_s", "latency_steps", "token_latency_steps")
"""The metrics with an interval."""
FASTER, SLOWER, NOISE = "faster", "slower", "noise"

Read = Callable[[ProgramOutcome], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRatio:
    """The ratio of a mean to the baseline's over the programs of both runs, with its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def finding(self) -> str:
        """`noise` if the interval includes 1, else `faster` or `slower`."""
        return FASTER if self.high < 1 else SLOWER if self.low > 1 else NOISE

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """A run beside the baseline."""

    finding: str | None
    """`faster`, `slower` or `noise`; None without a verdict."""
    text: str
    """The same in one sentence."""
    programs: int
    """The programs in both runs."""
    ratios: dict[str, PairedRatio]
    """By metric; none that a run did not report."""
    step_time: PairedRatio | None
    """How long an engine step took, as a ratio; None without reports."""


def paired_ratio(base: Sequence[float], other: Sequence[float]) -> PairedRatio | None:
    """Return the ratio of two means over the same programs; None without a positive baseline.

    The interval is Student's for the residuals of each program (the delta method). Programs that wait in one
    queue depend on each other, so two runs of the same policy can differ by more.
    """
    scale = mean_of(base) if base else 0.0
    if scale <= 0:
        return None
    ratio = mean_of(other) / scale
    residuals = [(after - ratio * before) / scale for before, after in zip(base, other, strict=True)]
    half_width = confidence_interval(residuals).half_width
    return PairedRatio(ratio=ratio, low=max(0.0, ratio - half_width), high=ratio + half_width)


def judge(
    base_name: str, base: Sequence[ProgramOutcome], name: str, other: Sequence[ProgramOutcome]
) -> RunVerdict:
    """Compare a run to a baseline.

    Args:
        base_name: The baseline's name.
        base: The outcomes of its programs.
        name: The run's name.
        other: The outcomes of its programs, of which those with the same id are compared.
    """
    by_id = {outcome.program: outcome for outcome in base}
    pairs = [(by_id[each.program], each) for each in other if each.program in by_id]
    found = {metric: _ratio(pairs, METRICS[metric]) for metric in COMPARED}
    ratios = {metric: ratio for metric, ratio in found.items() if ratio is not None}
    step_time = _ratio(pairs, _step_time_s)
    finding, text = None, f"no verdict: {len(pairs)} programs finished in both runs, of {MIN_PAIRS} needed"
    if len(pairs) >= MIN_PAIRS and LATENCY in ratios:
        finding, text = _finding(base_name, name, ratios, step_time)
    return RunVerdict(finding=finding, text=text, programs=len(pairs), ratios=ratios, step_time=step_time)


def _ratio(pairs: Sequence[tuple[ProgramOutcome, ProgramOutcome]], read: Read) -> PairedRatio | None:
    values = [(read(before), read(after)) for before, after in pairs]
    known = [(before, after) for before, after in values if before is not None and after is not None]
    if len(known) < len(values):
        return None
    return paired_ratio([before for before, _ in known], [after for _, after in known])


def _step_time_s(outcome: ProgramOutcome) -> float | None:
    steps = outcome.token_latency_steps
    return outcome.token_latency_s / steps if steps else None


def _finding(
    base_name: str, name: str, ratios: dict[str, PairedRatio], step_time: PairedRatio | None
) -> tuple[str | None, str]:
    in_seconds, in_steps = ratios[LATENCY], ratios.get(LATENCY_STEPS)
    measured = f"{TITLES[LATENCY][0]} {in_seconds} of {base_name}'s"
    if step_time is None or step_time.finding == NOISE or abs(step_time.ratio - 1) <= SAME_SPEED:
        return in_seconds.finding, _sentence(base_name, name, in_seconds.finding, measured)
    speed = f"an engine step took {step_time.ratio:.2f} times as long as with {base_name}"
    if in_steps is None:
        return None, f"no verdict: {measured}, but {speed}. Repeat both runs in turn on an idle machine"
    if in_steps.finding == in_seconds.finding:
        # A cold start or a busy machine makes most of the ratio in seconds then.
        finding = in_seconds.finding
        return (
            finding,
            f"{_sentence(base_name, name, finding, f'{in_steps}, counted in steps')}; {measured}; {speed}",
        )
    shown = NOISE if in_steps.finding == NOISE else f"{name} is {in_steps.finding}"
    return None, (
        f"no verdict: {measured}, but {speed}, and counted in steps it is {in_steps}: {shown}. Repeat both "
        "runs in turn on an idle machine"
    )


def _sentence(base_name: str, name: str, finding: str, measured: str) -> str:
    if finding == NOISE:
        return f"noise: {measured}; the interval includes 1"
    return f"{name} is {finding} than {base_name}: {measured}"
