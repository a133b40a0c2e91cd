"""`autellix sim calibrate`: fit an engine model to a live engine behind an Autellix gateway."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autellix_backend.cli.arguments import above_zero, count
from autellix_lab.bench.endpoint import batch_size, first_model, root_url
from autellix_lab.bench.mixes import live_player, measure_mixes, usual_mixes
from autellix_lab.cli.arguments import InputError, add_json, adder
from autellix_lab.cli.console import number_table
from autellix_lab.sim.calibrate import MeasuredCall, ModelFit, fit_model

LARGE_ERROR = 0.2
"""Error of a mix above which a warning is printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action's arguments."""
    add = adder(parser)
    add("url", "root of an Autellix gateway, with or without /v1", metavar="URL")
    add("--model", "model to ask for (default: the first that the gateway lists)")
    add(
        "--max-num-seqs", "the engine's batch size (default: from the gateway's settings)", count, metavar="N"
    )
    add("--seconds", "time to play", above_zero, 60.0, metavar="S")
    add("--answer-tokens", "output tokens of a long answer", count, 128, metavar="N")
    add("--prompt-tokens", "tokens of a long prompt", count, 1024, metavar="N")
    add("--out", "write the engine as JSON, for `--model FILE.json`", Path, metavar="FILE")
    add_json(parser, "print the engine and the residuals as JSON")


def run(args: argparse.Namespace) -> int:
    """Calibrate; 0 on success.

    Raises:
        ReplayError, FitError: if the engine cannot be measured.
        InputError: if the batch size is not known.
        OSError: if the file cannot be written.
    """
    console = Console(stderr=True)
    url = root_url(args.url)
    model_name = args.model or first_model(url)
    slots = args.max_num_seqs or _batch_size(url)
    if args.out is not None:
        args.out.open("a").close()
    mixes = usual_mixes(slots, prompt_tokens=args.prompt_tokens, answer_tokens=args.answer_tokens)
    play = live_player(url, model_name, args.seconds)
    measured = measure_mixes(mixes, play, args.seconds, console.print)
    fit = fit_model(measured)
    engine = fit.engine_model(model_name, slots)
    if fit.worst_error > LARGE_ERROR:
        console.print(
            f"the fit is more than {LARGE_ERROR:.0%} off in a mix: the machine was busy, or "
            "the model does not describe this engine's steps; measure again on an idle machine"
        )
    if args.out is not None:
        args.out.write_text(json.dumps(engine.to_mapping(), indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps({"engine": engine.to_mapping(), "errors": fit.errors, "calls": fit.calls}))
        return 0
    console = Console()
    console.print(_table(fit, measured))
    print(
        f"step_s {fit.step_s:.3g}, decode_s {fit.decode_s:.3g}, context_s {fit.context_s:.3g}, "
        f"prefill_s {fit.prefill_s:.3g}, call_s {fit.call_s:.3g} (batch of {slots}, {fit.calls} calls)"
    )
    if args.out is not None:
        print(f"{args.out}: use it with `autellix sim run … --model {args.out}`")
    return 0


def _batch_size(url: str) -> int:
    try:
        return batch_size(url)
    except ValueError as error:
        raise InputError(str(error)) from error


def _table(fit: ModelFit, measured: Sequence[MeasuredCall]) -> Table:
    table = number_table("mix", "calls", "steps of a call", "service (s)", "fitted / measured")
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
