"""Closed-loop mixes that measure a live engine, so that a model can be fitted to it.

Five mixes are played: single long answers, full batches of long answers, long prompts with answers of one
token, short calls with two clients for each slot, and full batches of long prompts with long answers. The
first four determine the four times of the model; with the fifth, the errors show whether the model holds. A
short warm-up round of each mix also finds how many calls fill its time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autellix_lab.bench.replay import ReplayJob, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.sim.calibrate import FitError, MeasuredCall
from autellix_lab.workload.arrivals import all_at_once
from autellix_lab.workload.trace import CallTrace, ProgramTrace

SHORT_PROMPT_TOKENS = 16
SHORT_ANSWER_TOKENS = 4
WARM_UP_TOKENS = 32
PROMPT_CLIENTS = 2
MOST_CALLS = 64
"""Calls of one client at most: more do not improve the fit."""
REPLAY_MARGIN_S = 120.0

Play = Callable[[str, Sequence[ProgramTrace]], list[CallResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Clients of equal calls, each sent when the previous one is answered."""

    name: str
    clients: int
    prompt_tokens: int
    answer_tokens: int
    calls: int = 1
    """Calls of one client."""

    def programs(self) -> list[ProgramTrace]:
        """Return one program for each client; no two calls share a prompt."""
        calls = tuple(
            CallTrace(
                id=number,
                parents=(number - 1,) if number else (),
                thread="main",
                prefill_tokens=self.prompt_tokens,
                decode_tokens=self.answer_tokens,
            )
            for number in range(self.calls)
        )
        return [
            ProgramTrace(source=f"calibrate-{self.name}", program_id=f"{self.name}_{client}", calls=calls)
            for client in range(self.clients)
        ]


def usual_mixes(
    slots: int,
    *,
    prompt_tokens: int = 1024,
    answer_tokens: int = 128,
    short_prompt_tokens: int = SHORT_PROMPT_TOKENS,
) -> list[Mix]:
    """Return the five mixes for an engine of this batch size."""
    short = short_prompt_tokens
    return [
        Mix(name="one lane", clients=1, prompt_tokens=short, answer_tokens=answer_tokens),
        Mix(name="full batch", clients=slots, prompt_tokens=short, answer_tokens=answer_tokens),
        Mix(name="prompts", clients=PROMPT_CLIENTS, prompt_tokens=prompt_tokens, answer_tokens=1),
        Mix(name="short", clients=2 * slots, prompt_tokens=short, answer_tokens=SHORT_ANSWER_TOKENS),
        Mix(name="both", clients=slots, prompt_tokens=prompt_tokens, answer_tokens=answer_tokens),
    ]


def measure_mixes(
    mixes: Sequence[Mix], play: Play, seconds: float, on_progress: Callable[[str], None]
) -> list[MeasuredCall]:
    """Play each mix for its share of the time; return the engine's reports of the calls.

    Raises:
        FitError: if calls were lost, or came without an engine report.
        ReplayError: if the client could not play at all.
    """
    planned: list[Mix] = []
    for mix in mixes:
        warm_up = replace(mix, answer_tokens=min(mix.answer_tokens, WARM_UP_TOKENS), calls=2)
        results = play(f"warm-up {mix.name}", warm_up.programs())
        measured_calls(mix.name, results)
        planned.append(_planned(mix, results, seconds / len(mixes)))
    found: list[MeasuredCall] = []
    for mix in planned:
        on_progress(
            f"{mix.name}: {mix.clients} client(s) of {mix.calls} calls, {mix.prompt_tokens} prompt tokens, "
            f"{mix.answer_tokens} answer tokens"
        )
        found += measured_calls(mix.name, play(mix.name, mix.programs()))
    return found


def measured_calls(mix: str, results: Sequence[CallResult]) -> list[MeasuredCall]:
    """Return the calls of a mix that ran without a preemption.

    Raises:
        FitError: if calls were lost, or came without an engine report.
    """
    lost = [result.error for result in results if result.error]
    if lost:
        raise FitError(f"{mix}: {len(lost)} of {len(results)} calls were lost: {lost[0]}")
    return [_measured(mix, result) for result in results if not result.receipt_number("preemptions")]


def live_player(url: str, model: str, seconds: float) -> Play:
    """Return a function that plays programs on a live endpoint."""
    # The time keeps the words of an earlier calibration out of the server's prefix cache.
    when = datetime.datetime.now(datetime.UTC).isoformat()

    def play(title: str, programs: Sequence[ProgramTrace]) -> list[CallResult]:
        job = ReplayJob(
            base_url=url,
            model=model,
            programs=programs,
            arrivals_s=all_at_once(len(programs)),
            salt=f"{when}:{title}",
            timeout_s=10 * seconds + REPLAY_MARGIN_S,
        )
        return replay(job)

    return play


def _measured(mix: str, result: CallResult) -> MeasuredCall:
    finish_step, engine_steps, service_s = (
        result.receipt_number(field) for field in ("finish_step", "engine_steps", "service_s")
    )
    if not result.has_engine_report or finish_step is None or engine_steps is None or service_s is None:
        raise FitError(
            f"{mix}: an answer came without an engine report; expected an Autellix gateway in front of "
            "an engine that it has started"
        )
    return MeasuredCall(
        mix=mix,
        finish_step=int(finish_step),
        engine_steps=int(engine_steps),
        prefill_tokens=result.prompt_tokens - (result.cached_tokens or 0),
        cached_tokens=result.cached_tokens or 0,
        output_tokens=result.output_tokens,
        service_s=service_s,
    )


def _planned(mix: Mix, warm_up: Sequence[CallResult], seconds: float) -> Mix:
    """Return the mix with as many calls as fill the time, by the last calls of the warm-up."""
    last = [result for result in warm_up if result.call == 1]
    call_s = sum(result.response_s for result in last) / len(last)
    call_s *= mix.answer_tokens / min(mix.answer_tokens, WARM_UP_TOKENS)
    return replace(mix, calls=max(2, min(MOST_CALLS, int(seconds / call_s))))
