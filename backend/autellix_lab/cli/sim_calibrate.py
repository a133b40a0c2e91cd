"""`autellix sim calibrate`: fit an engine model to a live engine behind an Autellix gateway.

Five closed-loop mixes are played by the client of `autellix bench`: one lane of long answers, a full batch of
long answers, long prompts with answers of one token, short calls with two lanes a slot, and a full
batch of long prompts with long answers. The first four would determine the four times; with the fifth, the
errors say whether the model holds. A first short round of each warms the engine up and tells how many calls
fill the time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autellix_backend.cli.arguments import InputError, above_zero, count
from autellix_backend.gateway.recording.trace import CallTrace, ProgramTrace
from autellix_lab.bench.replay import Job, ReplayError, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.cli.bench import MODELS_TIMEOUT_S, first_model
from autellix_lab.sim.calibrate import FitError, MeasuredCall, ModelFit, fit_model
from autellix_lab.sim.model import EngineModel
from autellix_lab.workload.arrivals import all_at_once

SHORT_PROMPT_TOKENS = 16
WARM_UP_TOKENS = 32
SHORT_ANSWER_TOKENS = 4
PROMPT_LANES = 2
MOST_CALLS = 64
"""Calls of one lane at most: more make the fit no better."""
TOKEN_BUDGET = 2048
"""vLLM's default on most hardware; the fit does not depend on it."""
REPLAY_MARGIN_S = 120.0
LARGE_ERROR = 0.2
"""Error of a mix from which on the user is warned."""

Play = Callable[[str, Sequence[ProgramTrace]], list[CallResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Lanes of equal calls, each made when the one before it has its answer."""

    name: str
    lanes: int
    prompt_tokens: int
    answer_tokens: int
    calls: int = 1
    """Calls of one lane."""

    def programs(self) -> list[ProgramTrace]:
        """Return one program for each lane; no two calls share a prompt."""
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
            ProgramTrace(source=f"calibrate-{self.name}", program_id=f"{self.name}_{lane}", calls=calls)
            for lane in range(self.lanes)
        ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action's arguments."""
    add = parser.add_argument
    add("url", metavar="URL", help="root of an Autellix gateway, with or without /v1")
    add("--model", help="model to ask for (default: the first that the gateway lists)")
    add(
        "--max-num-seqs",
        type=count,
        metavar="N",
        help="the engine's batch size (default: what the gateway's settings say)",
    )
    add("--seconds", type=above_zero, default=60.0, metavar="S", help="time to play (default: 60)")
    add("--answer-tokens", type=count, default=128, metavar="N", help="of a long answer (default: 128)")
    add("--prompt-tokens", type=count, default=1024, metavar="N", help="of a long prompt (default: 1024)")
    add("--out", type=Path, metavar="FILE", help="write the engine as JSON, for `--model FILE.json`")
    add("--json", action="store_true", help="print the engine and the residuals as JSON")


def run(args: argparse.Namespace) -> int:
    """Calibrate; 0 on success, 1 if the engine cannot be measured.

    Raises:
        InputError: if the batch size is not known.
        OSError: if the file cannot be written.
    """
    console = Console(stderr=True)
    try:
        url = args.url.rstrip("/").removesuffix("/v1")
        model_name = args.model or first_model(url)
        slots = args.max_num_seqs or _batch_size(url)
        if args.out is not None:
            args.out.open("a").close()
        play = _player(url, model_name, args.seconds)
        measured = measure_mixes(_mixes(args, slots), play, args.seconds, console.print)
        fit = fit_model(measured)
    except (ReplayError, FitError) as error:
        print(f"autellix sim calibrate: {error}", file=sys.stderr)
        return 1
    engine = _engine(model_name, slots, fit)
    if max(map(abs, fit.errors.values())) > LARGE_ERROR:
        console.print(
            f"the fit is more than {LARGE_ERROR:.0%} off in a mix: the machine did other work meanwhile, or "
            "this engine's steps do not cost what the model says; measure again on an idle machine"
        )
    if args.out is not None:
        args.out.write_text(json.dumps(engine.to_mapping(), indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps({"engine": engine.to_mapping(), "errors": fit.errors, "calls": fit.calls}))
        return 0
    console = Console()
    console.print(_table(fit, measured))
    print(
        f"step_s {fit.step_s:.3g}, decode_s {fit.decode_s:.3g}, prefill_s {fit.prefill_s:.3g}, "
        f"call_s {fit.call_s:.3g} "
        f"(batch of {slots}, {fit.calls} calls)"
    )
    if args.out is not None:
        print(f"{args.out}: use it with `autellix sim run … --model {args.out}`")
    return 0


def measure_mixes(
    mixes: Sequence[Mix], play: Play, seconds: float, tell: Callable[[str], None]
) -> list[MeasuredCall]:
    """Play each mix for its share of the time; return what the engine says about the calls.

    Raises:
        FitError: if calls were lost, or came without an account of the engine.
        ReplayError: if the client could not play at all.
    """
    planned: list[Mix] = []
    for mix in mixes:
        results = play(f"warm-up {mix.name}", _warm_up(mix).programs())
        measured_calls(mix.name, results)
        planned.append(_planned(mix, results, seconds / len(mixes)))
    found: list[MeasuredCall] = []
    for mix in planned:
        tell(
            f"{mix.name}: {mix.lanes} lane(s) of {mix.calls} calls, {mix.prompt_tokens} prompt tokens, "
            f"{mix.answer_tokens} answer tokens"
        )
        found += measured_calls(mix.name, play(mix.name, mix.programs()))
    return found


def measured_calls(mix: str, results: Sequence[CallResult]) -> list[MeasuredCall]:
    """Return the calls of a mix that ran without a preemption.

    Raises:
        FitError: if calls were lost, or came without an account of the engine.
    """
    lost = [result.error for result in results if result.error]
    if lost:
        raise FitError(f"{mix}: {len(lost)} of {len(results)} calls were lost: {lost[0]}")
    return [_measured(mix, result) for result in results if not result.receipt_number("preemptions")]


def _measured(mix: str, result: CallResult) -> MeasuredCall:
    finish_step, engine_steps, service_s = (
        result.receipt_number(field) for field in ("finish_step", "engine_steps", "service_s")
    )
    if not result.is_accounted or finish_step is None or engine_steps is None or service_s is None:
        raise FitError(
            f"{mix}: an answer came without the engine's account; expected an Autellix gateway in front of "
            "an engine that it has started"
        )
    return MeasuredCall(
        mix=mix,
        finish_step=int(finish_step),
        engine_steps=int(engine_steps),
        read_tokens=result.prompt_tokens - (result.cached_tokens or 0),
        output_tokens=result.output_tokens,
        service_s=service_s,
    )


def _mixes(args: argparse.Namespace, slots: int) -> list[Mix]:
    short, answer = SHORT_PROMPT_TOKENS, args.answer_tokens
    return [
        Mix(name="one lane", lanes=1, prompt_tokens=short, answer_tokens=answer),
        Mix(name="full batch", lanes=slots, prompt_tokens=short, answer_tokens=answer),
        Mix(name="prompts", lanes=PROMPT_LANES, prompt_tokens=args.prompt_tokens, answer_tokens=1),
        Mix(name="short", lanes=2 * slots, prompt_tokens=short, answer_tokens=SHORT_ANSWER_TOKENS),
        Mix(name="both", lanes=slots, prompt_tokens=args.prompt_tokens, answer_tokens=answer),
    ]


def _warm_up(mix: Mix) -> Mix:
    return Mix(
        name=mix.name,
        lanes=mix.lanes,
        prompt_tokens=mix.prompt_tokens,
        answer_tokens=min(mix.answer_tokens, WARM_UP_TOKENS),
        calls=2,
    )


def _planned(mix: Mix, warm_up: Sequence[CallResult], seconds: float) -> Mix:
    """Return the mix with as many calls as take the time, by the last calls of the warm-up."""
    last = [result for result in warm_up if result.call == 1]
    call_s = sum(result.response_s for result in last) / len(last)
    call_s *= mix.answer_tokens / min(mix.answer_tokens, WARM_UP_TOKENS)
    return Mix(
        name=mix.name,
        lanes=mix.lanes,
        prompt_tokens=mix.prompt_tokens,
        answer_tokens=mix.answer_tokens,
        calls=max(2, min(MOST_CALLS, int(seconds / call_s))),
    )


def _player(url: str, model: str, seconds: float) -> Play:
    # By the time: the words of an earlier calibration must not be found in the server's cache.
    when = datetime.datetime.now(datetime.UTC).isoformat()

    def play(title: str, programs: Sequence[ProgramTrace]) -> list[CallResult]:
        job = Job(
            base_url=url,
            model=model,
            programs=programs,
            arrivals_s=all_at_once(len(programs)),
            salt=f"{when}:{title}",
            timeout_s=10 * seconds + REPLAY_MARGIN_S,
        )
        return replay(job)

    return play


def _batch_size(url: str) -> int:
    found: Mapping[str, Any] = {}
    try:
        with urllib.request.urlopen(f"{url}/autellix/v1/config", timeout=MODELS_TIMEOUT_S) as answer:
            found = json.load(answer)
        size = found["engine"]["max_num_seqs"]
    except (
        urllib.error.URLError,
        ConnectionError,
        TimeoutError,
        ValueError,
        LookupError,
        TypeError,
    ) as error:
        raise InputError(f"{url} does not tell its settings ({error}); expected --max-num-seqs N") from error
    if not isinstance(size, int):
        raise InputError(f"{url}: engine.max_num_seqs is {size}; expected --max-num-seqs N")
    return size


def _engine(model_name: str, slots: int, fit: ModelFit) -> EngineModel:
    today = datetime.datetime.now(datetime.UTC).date()
    worst = max(map(abs, fit.errors.values()))
    return EngineModel(
        name=model_name,
        max_num_seqs=slots,
        token_budget=max(TOKEN_BUDGET, slots),
        source=f"measured on {today}: {fit.calls} calls, at most {worst:.1%} off in any mix",
        step_s=fit.step_s,
        decode_s=fit.decode_s,
        prefill_s=fit.prefill_s,
        call_s=fit.call_s,
    )


def _table(fit: ModelFit, measured: Sequence[MeasuredCall]) -> Table:
    table = Table()
    for position, title in enumerate(("mix", "calls", "steps of a call", "service (s)", "fitted / measured")):
        table.add_column(title, justify="right" if position else "left")
    for mix, error in fit.errors.items():
        calls = [call for call in measured if call.mix == mix]
        table.add_row(
            mix,
            str(len(calls)),
            f"{sum(call.engine_steps for call in calls) / len(calls):.1f}",
            f"{sum(call.service_s for call in calls):.2f}",
            f"{1 + error:.3f}",
        )
    return table
