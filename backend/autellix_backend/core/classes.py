"""The work that programs of a class need, learned from those that have ended.

Work is that of `core.boost`. The total of a live program is predicted at checkpoints: when its first,
second, fourth, eighth ... call arrives. A prediction adds the work attained so far to the median of what
ended programs of its class needed beyond the same checkpoint: those whose first prompt was of the same size
(a bucket of powers of two), else all that reached the checkpoint, else those that were larger than what it
has attained. The output of the last call was tried as a second bucket and improved nothing.

Each prediction is kept until its program ends and then scored by ln(predicted / true), so every error comes
from a program that the tables had not seen. Faded means keep the errors (Gama, Sebastião and Rodrigues, "On
evaluating stream learning algorithms", 2013). Page's cumulative sums ("Continuous inspection schemes", 1954)
over the errors at the first call detect drift; the class then keeps its latest programs only.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from autellix_backend.core.recent import latest
from autellix_backend.core.statistics import SIZE_WINDOW, SizeSpread

CHECKPOINTS = (0, 1, 3, 7, 15, 31)
"""Finished calls at which a program's total is predicted: at its first, second, fourth ... call."""
HISTORY_PROGRAMS = SIZE_WINDOW
"""Ended programs that a class remembers; the oldest are forgotten first."""
MAX_CLASSES = 256
"""Classes of one tenant; the one not seen for the longest is forgotten first."""
LEAST_PROGRAMS = 8
"""Ended programs that a class needs before anything is predicted."""
LEAST_IN_BUCKET = 4
"""Ended programs that a table needs; with fewer, the next coarser one answers."""
LEAST_SCORED = 30
"""Scored predictions that a class needs at a checkpoint before they count."""
MARGIN = 0.9
"""A class is predicted where the error is below this share of the class's spread."""
FADING = 0.99
"""Weight of the errors before the last one: means over about 100 programs."""
DRIFT_SLACK = 0.5
DRIFT_LIMIT = 10.0
"""Page's test, in standard deviations of the error: a lasting shift beyond the slack adds up to the limit."""
KEPT_AFTER_DRIFT = 32
"""Programs kept at a drift; more would leave the old ones in the majority."""


@dataclass(frozen=True, slots=True, order=True)
class ClassKey:
    """A class of programs of one tenant."""

    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class _Point:
    """A program at a checkpoint."""

    attained: float
    predicted: float | None
    drifts: int
    """Drifts of its class before the prediction; one made before a drift is not scored after it."""


@dataclass(slots=True)
class ObservedProgram:
    """A program that has not ended, at the checkpoints it has passed."""

    key: ClassKey
    first_prompt_tokens: float
    points: dict[int, _Point] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointError:
    """How well a class is predicted at one checkpoint."""

    call: int
    """The call at whose arrival the prediction is made, counted from 1."""
    scored: int
    error: float | None
    """Root mean square of ln(predicted / true); None without a scored prediction."""
    is_predicted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReport:
    """The sizes of a class, and how well they are predicted."""

    key: ClassKey
    ended: int
    """Programs that ended since the class was first seen."""
    median_work: float | None
    p90_work: float | None
    spread: float
    """Standard deviation of ln(work)."""
    errors: tuple[CheckpointError, ...]
    drifts: int
    is_drifting: bool
    """Whether a drift was found so recently that predictions do not count yet."""


@dataclass(slots=True)
class _FadedMean:
    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        self.total = FADING * self.total + value
        self.weight = FADING * self.weight + 1

    def value(self) -> float:
        return self.total / self.weight if self.weight else 0.0


@dataclass(slots=True)
class _Score:
    """The log-errors at one checkpoint."""

    mean: _FadedMean = field(default_factory=_FadedMean)
    square: _FadedMean = field(default_factory=_FadedMean)
    scored: int = 0
    above: float = 0.0
    below: float = 0.0
    """Page's sums: how far the errors have stayed above and below their mean."""

    def add(self, log_error: float) -> None:
        self._watch(log_error)
        self.scored += 1
        self.mean.add(log_error)
        self.square.add(log_error**2)

    def error(self) -> float | None:
        return math.sqrt(self.square.value()) if self.scored else None

    def has_drifted(self) -> bool:
        return max(self.above, self.below) > DRIFT_LIMIT

    def _watch(self, log_error: float) -> None:
        variance = self.square.value() - self.mean.value() ** 2
        if self.scored < LEAST_SCORED or variance <= 0:
            return
        deviation = (log_error - self.mean.value()) / math.sqrt(variance)
        self.above = max(0.0, self.above + deviation - DRIFT_SLACK)
        self.below = max(0.0, self.below - deviation - DRIFT_SLACK)


@dataclass(frozen=True, slots=True)
class _Ended:
    """An ended program as the tables hold it."""

    work: float
    bucket: int
    attained: tuple[float | None, ...]
    """Work at each checkpoint; None for one that it did not pass."""

    def remainders(self) -> Iterator[tuple[tuple[int, int | None], float]]:
        """Iterate over its work beyond each checkpoint, by table: the first prompt's bucket, and all."""
        for checkpoint, attained in zip(CHECKPOINTS, self.attained, strict=True):
            if attained is not None:
                remainder = max(0.0, self.work - attained)
                yield (checkpoint, self.bucket), remainder
                yield (checkpoint, None), remainder


class _Tables:
    """The works and remainders of the latest ended programs of a class, in rising order."""

    def __init__(self, ended: Iterable[_Ended] = ()) -> None:
        self.ended: deque[_Ended] = deque()
        self.works = array("d")
        self.sizes = SizeSpread()
        self._remainders: dict[tuple[int, int | None], array[float]] = {}
        for program in ended:
            self.add(program)

    def add(self, program: _Ended) -> None:
        """Add a program, and drop the oldest one if there are too many."""
        if len(self.ended) == HISTORY_PROGRAMS:
            self._drop_oldest()
        self.ended.append(program)
        insort(self.works, program.work)
        self.sizes.add(program.work)
        for table, remainder in program.remainders():
            insort(self._remainders.setdefault(table, array("d")), remainder)

    def predict(self, checkpoint: int, bucket: int, attained: float) -> float | None:
        """Return the total work of a program at a checkpoint, None if too few have ended."""
        if len(self.ended) < LEAST_PROGRAMS:
            return None
        return self._total(checkpoint, bucket, attained) or None

    def _total(self, checkpoint: int, bucket: int, attained: float) -> float | None:
        for table in ((checkpoint, bucket), (checkpoint, None)):
            remainders = self._remainders.get(table, ())
            if len(remainders) >= LEAST_IN_BUCKET:
                return attained + _median(remainders)
        larger = len(self.works) - bisect_right(self.works, attained)
        return self.works[-1 - larger // 2] if larger >= LEAST_IN_BUCKET else None

    def _drop_oldest(self) -> None:
        oldest = self.ended.popleft()
        del self.works[bisect_left(self.works, oldest.work)]
        for table, remainder in oldest.remainders():
            values = self._remainders[table]
            del values[bisect_left(values, remainder)]
            if not values:
                del self._remainders[table]


class _ClassTables:
    """One class: its tables, and how well they predict."""

    def __init__(self) -> None:
        self.tables = _Tables()
        self.scores = {checkpoint: _Score() for checkpoint in CHECKPOINTS}
        self.ended = 0
        self.drifts = 0

    def add(self, program: ObservedProgram, work: float) -> None:
        for checkpoint, point in program.points.items():
            if point.predicted is not None and point.drifts == self.drifts:
                self.scores[checkpoint].add(math.log(point.predicted / work))
        self.tables.add(_ended(program, work))
        self.ended += 1
        if self.scores[CHECKPOINTS[0]].has_drifted():
            self._forget()

    def is_predicted(self, checkpoint: int) -> bool:
        score = self.scores[checkpoint]
        error = score.error()
        return error is not None and score.scored >= LEAST_SCORED and error < MARGIN * self.tables.sizes.value

    def report(self, key: ClassKey) -> ClassReport:
        works = self.tables.works
        return ClassReport(
            key=key,
            ended=self.ended,
            median_work=_median(works) if works else None,
            p90_work=works[math.ceil(0.9 * len(works)) - 1] if works else None,
            spread=self.tables.sizes.value,
            errors=tuple(self._errors()),
            drifts=self.drifts,
            is_drifting=self.drifts > 0 and self.scores[CHECKPOINTS[0]].scored < LEAST_SCORED,
        )

    def _errors(self) -> Iterator[CheckpointError]:
        for checkpoint, score in self.scores.items():
            yield CheckpointError(
                call=checkpoint + 1,
                scored=score.scored,
                error=score.error(),
                is_predicted=self.is_predicted(checkpoint),
            )

    def _forget(self) -> None:
        self.drifts += 1
        self.tables = _Tables(list(self.tables.ended)[-KEPT_AFTER_DRIFT:])
        self.scores = {checkpoint: _Score() for checkpoint in CHECKPOINTS}


class ClassSizes:
    """Predicts the work of programs by their class, and measures how well."""

    def __init__(self) -> None:
        self._classes: dict[str, dict[ClassKey, _ClassTables]] = {}
        self._sizes: dict[str, SizeSpread] = {}
        """Of all classes of a tenant."""

    def on_call(self, program: ObservedProgram, *, finished_calls: int, attained_work: float) -> None:
        """Predict a program's total if the arrival of a call takes it past a checkpoint."""
        checkpoint = CHECKPOINTS[bisect_right(CHECKPOINTS, finished_calls) - 1]
        if checkpoint < max(program.points, default=0) or checkpoint in program.points:
            return
        found = self._class(program.key)
        predicted = found.tables.predict(checkpoint, _bucket(program.first_prompt_tokens), attained_work)
        program.points[checkpoint] = _Point(attained_work, predicted, found.drifts)

    def on_end(self, program: ObservedProgram, work: float) -> None:
        """Score the predictions for a program that has ended, and learn from it unless it did no work."""
        if work > 0:
            self._class(program.key).add(program, work)
            self._sizes.setdefault(program.key.tenant, SizeSpread()).add(work)

    def spread(self, tenant: str) -> float | None:
        """Return the standard deviation of ln(work) over a tenant's latest ended programs of all classes.

        None before a few have ended.
        """
        sizes = self._sizes.get(tenant)
        return sizes.value if sizes is not None and len(sizes) >= LEAST_PROGRAMS else None

    def reports(self, tenant: str | None = None) -> Iterator[ClassReport]:
        """Yield a report of each class, of one tenant or of all, by tenant and name; each takes 40 µs."""
        tenants = self._classes if tenant is None else {tenant}
        classes = [item for name in tenants for item in self._classes.get(name, {}).items()]
        for key, found in sorted(classes, key=itemgetter(0)):
            yield found.report(key)

    def _class(self, key: ClassKey) -> _ClassTables:
        return latest(self._classes.setdefault(key.tenant, {}), key, _ClassTables, MAX_CLASSES)


def _ended(program: ObservedProgram, work: float) -> _Ended:
    points = (program.points.get(checkpoint) for checkpoint in CHECKPOINTS)
    attained = tuple(None if point is None else point.attained for point in points)
    return _Ended(work, _bucket(program.first_prompt_tokens), attained)


def _bucket(tokens: float) -> int:
    return max(1, math.ceil(tokens)).bit_length()


def _median(ordered: Sequence[float]) -> float:
    # Errors are ratios, so between the two in the middle lies their geometric mean.
    middle = len(ordered) // 2
    return math.sqrt(ordered[middle] * ordered[-1 - middle])
