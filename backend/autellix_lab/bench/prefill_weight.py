"""The weight of prefill on the engine's clock: how many prefilled tokens take as long as a step.

It depends on the machine, and on what else runs there. So it is measured: beside a batch that decodes, a
program makes calls in threes, one that generates a token from a short prompt, one from a long one, and one
that generates several from a short one. All three wait as long for the step that is under way, so what the
long prompt takes is the difference of the second to the first, and what a step takes is that of the third.
Threes that other work disturbs count little in a median, and work that goes on all the time disturbs all
three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from autellix_lab.bench.calibrate import CalibrationError
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import CallTrace, ProgramTrace

PROBE = "prefill-probe"
SHORT_TOKENS, LONG_TOKENS = 40, 1000
"""Lengths of prompts. The long one is about what the demo's calls miss in a full cache."""
STEPS = 12
"""Tokens of the third call after its first: they take about as long as the long prompt."""
THREES, LEAST_THREES = 30, 3
FIRST_THREES = 2
"""Not counted: the batch is not full."""
ANSWER_TOKENS = 60
"""Of a call in the batch. They are short, so that they fit into a scarce KV memory."""
STEPS_OF_THREE = 30
"""About, with those that pass between two calls of the probe."""


def probe_programs(slots: int) -> list[ProgramTrace]:
    """Return the probe and the programs that decode beside it, and fill all batch slots with it."""
    threes = ((SHORT_TOKENS, 1), (LONG_TOKENS, 1), (SHORT_TOKENS, 1 + STEPS)) * THREES
    answers = ((SHORT_TOKENS, ANSWER_TOKENS),) * (THREES * STEPS_OF_THREE // ANSWER_TOKENS)
    return [_chain(PROBE, threes), *(_chain(f"batch-{number}", answers) for number in range(1, slots))]


def _chain(name: str, lengths: Sequence[tuple[int, int]]) -> ProgramTrace:
    """Return a program whose calls have prompts of words of their own."""
    calls = tuple(
        CallTrace(
            id=number,
            parents=(number - 1,) if number else (),
            thread="main",
            prefill_tokens=prompt,
            decode_tokens=answer,
        )
        for number, (prompt, answer) in enumerate(lengths)
    )
    return ProgramTrace(source=PROBE, program_id=name, calls=calls)


def prefilled_tokens_of_step(results: Sequence[CallResult]) -> float:
    """Return how many prefilled tokens take as long as a step, by the calls of `probe_programs`.

    Infinite if prefill takes no time.

    Raises:
        CalibrationError: if calls were lost, or too few were made beside a full batch.
    """
    lost = [result.error for result in results if result.error]
    if lost:
        raise CalibrationError(f"{len(lost)} of {len(results)} probe calls were lost: {lost[0]}")
    ends_s: dict[str, float] = {}
    for result in results:
        ends_s[result.program] = max(result.finish_s, ends_s.get(result.program, 0.0))
    end_s = min(ends_s.values())
    calls = sorted((result for result in results if result.program == PROBE), key=lambda item: item.call)
    threes = [three for three in zip(*[iter(calls)] * 3, strict=True) if three[-1].finish_s <= end_s]
    threes = threes[FIRST_THREES:]
    if len(threes) < LEAST_THREES:
        raise CalibrationError(f"only {len(threes)} probes of prefill were made beside a full batch")
    # As shares of their three, which a slower machine does not change.
    steps, tokens = zip(*(_shares(*three) for three in threes), strict=True)
    return median(steps) / token if (token := median(tokens)) > 0 else math.inf


def _shares(one: CallResult, long: CallResult, many: CallResult) -> tuple[float, float]:
    """Return the shares of the three calls' time that a step and a prefilled token take."""
    whole_s = one.response_s + long.response_s + many.response_s
    step_s = (many.response_s - one.response_s) / STEPS
    token_s = (long.response_s - one.response_s) / (_computed(long) - _computed(one))
    return step_s / whole_s, token_s / whole_s


def _computed(result: CallResult) -> int:
    return result.prompt_tokens - (result.cached_tokens or 0)
