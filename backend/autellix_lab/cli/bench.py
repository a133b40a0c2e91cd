"""`autellix bench`: replay recorded programs on a live endpoint, and compare results."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from autellix_backend.cli.arguments import above_zero, count
from autellix_lab.bench.arrivals import RECORDED, REPLAY_ARRIVALS, rescaled_arrivals, with_unique_ids
from autellix_lab.bench.endpoint import first_model, root_url
from autellix_lab.bench.replay import ReplayError, ReplayJob, replay
from autellix_lab.bench.result_file import (
    ReplayResult,
    make_result,
    read_result,
    result_to_json,
)
from autellix_lab.bench.result_table import (
    differing_settings,
    figures,
    ratio_table,
    result_table,
    verdicts_of,
)
from autellix_lab.cli.arguments import InputError, add_fit_options, add_json, adder, fit_of, run_action
from autellix_lab.cli.console import make_console, progress_bars
from autellix_lab.workload.arrivals import draw_arrivals
from autellix_lab.workload.fit import apply_fit
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import read_programs

LONGEST_RUN_S = 7 * 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_replay(actions.add_parser("replay", help="play a trace against an endpoint, and measure"))
    _add_compare(actions.add_parser("compare", help="show results side by side, as ratios to the first"))


run = run_action


def _add_replay(parser: argparse.ArgumentParser) -> None:
    add = adder(parser)
    add("trace", "programs, as .jsonl or .jsonl.gz", Path, metavar="TRACE")
    add("--url", "root of any OpenAI-compatible server, with or without /v1", required=True)
    add("--model", "model to ask for (default: the first that the server lists)")
    add("--programs", "play the first N programs only", count, metavar="N")
    add("--rate", "programs per second; without --arrivals a Poisson process", above_zero, metavar="R")
    kinds = "recorded: as in the trace, with --rate rescaled; bursty: in bursts, with --rate; at_once"
    add("--arrivals", f"{kinds} (default: poisson with --rate, else recorded)", choices=REPLAY_ARRIVALS)
    add_fit_options(parser)
    add("--timeout", "longest time that a call may take, s", above_zero, 600.0, metavar="S")
    add("--seed", "seed of the arrivals and of the words in prompts", int, 0)
    add("--out", "write the result as JSON, for `autellix bench compare`", Path, metavar="FILE")
    add_json(parser, "print the result as JSON instead of a table")
    parser.set_defaults(action=_replay)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="results of `bench replay`")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON instead of a table")
    parser.set_defaults(action=_compare)


def _replay(args: argparse.Namespace) -> int:
    console = make_console(is_stderr=args.json)
    programs = load_programs(args)
    arrivals_s = plan_arrivals(args, programs)
    url = root_url(args.url)
    model = args.model or first_model(url)
    if args.out is not None:
        # A long run whose result cannot be written would be lost.
        args.out.open("a").close()
    setting = _setting(args, programs, url, model)
    job = ReplayJob(
        base_url=url,
        model=model,
        programs=programs,
        arrivals_s=arrivals_s,
        # The time keeps the words of an earlier run out of the server's prefix cache.
        salt=f"{args.seed}:{setting['when']}",
        call_timeout_s=args.timeout,
        timeout_s=LONGEST_RUN_S,
        api_key=None,
    )
    calls = sum(len(program.calls) for program in programs)
    with progress_bars(console) as follow:
        results = replay(job, follow(f"{len(programs)} programs", calls))
    result = make_result(setting, programs, arrivals_s, results)
    _show_result(args, console, result)
    if result.lost_calls:
        causes = "; ".join(result.errors)
        raise ReplayError(f"{result.lost_calls} of {result.calls} calls were lost: {causes}")
    return 0


def load_programs(args: argparse.Namespace) -> list[ProgramTrace]:
    """Read and fit the programs to play.

    Raises:
        TraceError: if the trace cannot be read or holds no program.
        InputError: if the bounds leave no room for a call.
    """
    programs = read_programs(args.trace)[: args.programs]
    fit = fit_of(args)
    return with_unique_ids([apply_fit(program, fit) for program in programs])


def plan_arrivals(args: argparse.Namespace, programs: Sequence[ProgramTrace]) -> tuple[float, ...]:
    """Return when each program arrives, in seconds from the start.

    Raises:
        InputError: if the options contradict each other, or the trace lacks the times.
    """
    kind = _arrival_kind(args)
    try:
        if kind == RECORDED:
            return rescaled_arrivals(programs, args.rate, args.seed)
        if kind == "at_once" and args.rate is not None:
            raise InputError("--rate has no meaning with --arrivals at_once")
        if kind != "at_once" and args.rate is None:
            raise InputError(f"--arrivals {kind} needs --rate")
        return draw_arrivals(kind, len(programs), args.rate or 0.0, args.seed)
    except ValueError as error:
        raise InputError(f"{args.trace}: --arrivals {kind}: {error}") from error


def _arrival_kind(args: argparse.Namespace) -> str:
    return args.arrivals or ("poisson" if args.rate is not None else RECORDED)


def _setting(
    args: argparse.Namespace, programs: Sequence[ProgramTrace], url: str, model: str
) -> dict[str, Any]:
    return {
        "trace": args.trace.name,
        "url": url,
        "model": model,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "programs": len(programs),
        "calls": sum(len(program.calls) for program in programs),
        "decode_tokens": sum(program.decode_tokens for program in programs),
        "arrivals": _arrival_kind(args),
        "rate_per_s": args.rate,
        "length_scale": args.length_scale,
        "max_context_tokens": args.max_context,
        # JSON has no infinity.
        "gap_cap_s": args.gaps.cap_s if math.isfinite(args.gaps.cap_s) else "recorded",
        "seed": args.seed,
    }


def _show_result(args: argparse.Namespace, console: Console, result: ReplayResult) -> None:
    mapping = result_to_json(result) | {"figures": figures(result)}
    if args.out is not None:
        args.out.write_text(json.dumps(mapping, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(mapping))
        return
    console.print(result_table({result.setting["model"]: result}))
    if result.calls_without_report:
        console.print(f"{result.calls_without_report} calls came without an engine report")


def _compare(args: argparse.Namespace) -> int:
    results = dict(zip(_labels(args.results), map(read_result, args.results), strict=True))
    differing, verdicts = differing_settings(results), verdicts_of(results)
    if args.json:
        numbers = {
            label: result_to_json(item) | {"figures": figures(item)} for label, item in results.items()
        }
        judged = {label: dataclasses.asdict(verdict) for label, verdict in verdicts.items()}
        print(json.dumps({"results": numbers, "verdicts": judged, "differing_settings": differing}))
        return 0
    console = make_console()
    console.print(result_table(results))
    for line in differing:
        console.print(f"differs: {line}")
    if verdicts:
        console.print(ratio_table(next(iter(results)), verdicts))
    for label, verdict in verdicts.items():
        console.print(f"{label}: {verdict.text}", highlight=False, soft_wrap=True)
    return 0


def _labels(paths: Sequence[Path]) -> list[str]:
    stems = [path.stem for path in paths]
    labels = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    if len(set(labels)) < len(labels):
        raise InputError("the same result file is named twice")
    return labels
