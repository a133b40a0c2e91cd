"""Fitting an engine model: synthetic calls give back the times that made them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from autellix_lab.sim.calibrate import FitError, MeasuredCall, fit_model, predicted_s
from autellix_lab.sim.model import EngineModel

MODEL = EngineModel(step_s=0.012, decode_s=0.0007, prefill_s=0.00009, call_s=0.004)


def call(
    mix: str, first: int, output_tokens: int, prefill_tokens: int, chunks: int = 1, service_s: float = 1.0
) -> MeasuredCall:
    steps = chunks + output_tokens - 1
    return MeasuredCall(
        mix=mix,
        finish_step=first + steps - 1,
        engine_steps=steps,
        prefill_tokens=prefill_tokens,
        output_tokens=output_tokens,
        service_s=service_s,
    )


def alone() -> list[MeasuredCall]:
    return [call("alone", 100 * number, 64, 20) for number in range(3)]


def batch() -> list[MeasuredCall]:
    # Not quite together: the second pair begins to prefill while the first decodes.
    return [call("batch", first, 50, 20 + slot) for slot, first in enumerate((1, 1, 6, 6))]


def prompts() -> list[MeasuredCall]:
    return [call("prompts", 10 * number, 1, 600, chunks=2) for number in range(4)]


def long_contexts() -> list[MeasuredCall]:
    # Half of each prompt comes from the cache.
    return [replace(call("long", first, 50, 400, chunks=2), cached_tokens=400) for first in (1, 1, 6, 6)]


def measured(
    calls: Sequence[MeasuredCall], noise: float = 0.0, model: EngineModel = MODEL
) -> list[MeasuredCall]:
    """Charge the calls by the model."""
    rng = random.Random(1)
    times = predicted_s(model, calls)
    return [
        replace(item, service_s=time * (1 + noise * rng.gauss(0, 1)))
        for item, time in zip(calls, times, strict=True)
    ]


def test_a_call_is_charged_the_steps_of_all_that_overlap_with_it() -> None:
    """Two calls: one prefills in the step in which the other decodes its second token."""
    first, second = call("m", 1, 3, 10), call("m", 2, 2, 30)

    s, d, p, a = MODEL.step_s, MODEL.decode_s, MODEL.prefill_s, MODEL.call_s
    joint_s = (s + d + 30 * p + a) + (s + 2 * d)
    assert predicted_s(MODEL, [first, second]) == pytest.approx([(s + 10 * p + a) + joint_s, joint_s])


def test_mixes_do_not_overlap() -> None:
    """Steps of the same number in another mix are others."""
    one, other = call("one", 1, 5, 10), call("other", 1, 5, 10)

    assert predicted_s(MODEL, [one, other]) == pytest.approx(2 * predicted_s(MODEL, [one]))


def test_the_fit_recovers_the_times() -> None:
    """Without noise exactly, and no mix has an error."""
    found = fit_model(measured([*alone(), *batch(), *prompts()]))

    times = (found.step_s, found.decode_s, found.prefill_s, found.call_s)
    assert times == pytest.approx((0.012, 0.0007, 0.00009, 0.004))
    assert found.errors == pytest.approx({"alone": 0, "batch": 0, "prompts": 0}, abs=1e-9)
    assert found.calls == 11


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 1e-6), (0.01, 0.15)])
def test_long_contexts_determine_what_a_token_of_context_costs(noise: float, tolerance: float) -> None:
    model = replace(MODEL, context_s=0.000004)
    calls = [*alone(), *batch(), *prompts(), *long_contexts()]

    found = fit_model(measured(calls, noise, model))

    assert found.context_s == pytest.approx(0.000004, rel=tolerance)
    assert found.decode_s == pytest.approx(0.0007, rel=2 * tolerance)
    assert found.engine_model("fitted", 4).context_s == found.context_s


def test_a_step_reads_the_prompt_and_the_answer_so_far() -> None:
    """Three tokens: the second step reads the prompt of 10 + 20 and one token, the third one more."""
    model = replace(MODEL, context_s=0.001)
    item = replace(call("m", 1, 3, 20), cached_tokens=10)
    extra_s = predicted_s(model, [item])[0] - predicted_s(MODEL, [item])[0]
    assert extra_s == pytest.approx(0.001 * (31 + 32))


def test_the_fit_tolerates_noise() -> None:
    """Two per cent of noise in each call moves the main time by little."""
    found = fit_model(measured([*alone(), *batch(), *prompts()], noise=0.02))

    assert found.step_s == pytest.approx(0.012, rel=0.05)
    assert max(map(abs, found.errors.values())) < 0.03


def test_one_mix_does_not_dominate_the_fit() -> None:
    """Many prompts of very uneven times: the other mixes are still met, and the prompts in their sum."""
    many = [call("prompts", 10 * number, 1, 600) for number in range(20)]
    uneven = [
        replace(item, service_s=item.service_s * (0.1 if number % 2 else 1.9))
        for number, item in enumerate(measured(many))
    ]
    found = fit_model([*measured(alone()), *measured(batch()), *uneven])

    assert found.step_s == pytest.approx(0.012, rel=0.01)
    assert found.errors == pytest.approx({"alone": 0, "batch": 0, "prompts": 0}, abs=0.01)


def test_no_time_is_below_zero() -> None:
    """A full batch that is faster than a call alone, as noise can make it, costs nothing per call."""
    slow = [replace(item, service_s=item.service_s * 1.2) for item in measured(alone())]
    found = fit_model([*slow, *measured(batch()), *measured(prompts())])

    assert found.decode_s == 0.0
    assert found.step_s > 0.012
    assert found.prefill_s > 0


@pytest.mark.parametrize("calls", [[], alone(), [*alone(), *prompts()][:1]])
def test_calls_that_leave_a_time_open_are_refused(calls: list[MeasuredCall]) -> None:
    """Calls of one kind do not determine the times."""
    with pytest.raises(FitError, match="do not determine step_s, decode_s, prefill_s, call_s"):
        fit_model(calls)


@pytest.mark.parametrize(("engine_steps", "service_s"), [(3, 1.0), (8, 0.0)])
def test_a_call_that_contradicts_itself_is_refused(engine_steps: int, service_s: float) -> None:
    """Fewer steps than tokens, or no time."""
    bad = replace(call("m", 1, 5, 10), engine_steps=engine_steps, service_s=service_s)

    with pytest.raises(FitError, match="a call of m with 5 tokens had"):
        fit_model([bad])
