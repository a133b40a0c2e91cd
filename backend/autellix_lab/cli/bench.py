"""`autellix bench`: replay recorded programs on live endpoints, and compare results."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from autellix_backend.cli.arguments import above_zero, count
from autellix_lab.bench.arrivals import RECORDED, REPLAY_ARRIVALS, rescaled_arrivals, with_unique_ids
from autellix_lab.bench.endpoint import first_model, root_url
from autellix_lab.bench.replay import ReplayError, ReplayJob, replay
from autellix_lab.bench.result_file import (
    ReplayResult,
    join_rounds,
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
from autellix_lab.cli.arguments import (
    InputError,
    add_fit_options,
    add_json,
    add_load_options,
    adder,
    fit_of,
    load_options,
    run_action,
)
from autellix_lab.cli.console import make_console, progress_bars
from autellix_lab.workload.arrivals import draw_arrivals
from autellix_lab.workload.fit import apply_fit
from autellix_lab.workload.loaders import load
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import not_empty

LONGEST_RUN_S = 7 * 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_replay(actions.add_parser("replay", help="play a trace against one server or several, and measure"))
    _add_compare(actions.add_parser("compare", help="show results side by side, as ratios to the first"))


run = run_action


def _add_replay(parser: argparse.ArgumentParser) -> None:
    add = adder(parser)
    add("trace", "programs, in any format of `autellix workload convert`", Path, metavar="TRACE")
    add_load_options(parser)
    url = "root of any OpenAI-compatible server, with or without /v1; several are compared to the first"
    add("--url", url, required=True, action="append")
    add(
        "--rounds",
        "play N times on each server, in alternating order",
        count,
        1,
        metavar="N",
    )
    add("--model", "model to ask for (default: the first that the server lists)")
    add("--programs", "play the first N programs only", count, metavar="N")
    add("--rate", "programs per second; without --arrivals a Poisson process", above_zero, metavar="R")
    kinds = "recorded: as in the trace, with --rate rescaled; bursty: in bursts, with --rate; at_once"
    add("--arrivals", f"{kinds} (default: poisson with --rate, else recorded)", choices=REPLAY_ARRIVALS)
    add_fit_options(parser)
    add("--timeout", "longest time that a call may take, s", above_zero, 600.0, metavar="S")
    add("--seed", "seed of the arrivals and of the words in prompts", int, 0)
    out = "write the result as JSON, for `autellix bench compare`; of several servers, the comparison"
    add("--out", out, Path, metavar="FILE")
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
    urls = [root_url(url) for url in args.url]
    if len(set(urls)) < len(urls):
        raise InputError("--url: the same server is named twice")
    models = {url: args.model or first_model(url) for url in urls}
    if args.out is not None:
        # A long run whose result cannot be written would be lost.
        args.out.open("a").close()
    found: dict[str, list[ReplayResult]] = {url: [] for url in urls}
    with progress_bars(console) as follow:
        for number in range(args.rounds):
            for url in reversed(urls) if number % 2 else urls:
                setting = _setting(args, programs, url, models[url])
                job = ReplayJob(
                    base_url=url,
                    model=models[url],
                    programs=programs,
                    arrivals_s=arrivals_s,
                    # The time keeps the words of an earlier run out of the server's prefix cache, and the
                    # address those of a run on an engine that both servers have behind them.
                    salt=f"{args.seed}:{setting['when']}:{url}",
                    call_timeout_s=args.timeout,
                    timeout_s=LONGEST_RUN_S,
                    api_key=None,
                )
                shown = f"{len(programs)} programs" + (f", {url}" if len(urls) > 1 else "")
                results = replay(job, follow(shown, setting["calls"]))
                found[url].append(make_result(setting, programs, arrivals_s, results))
    joined = {url: join_rounds(results) for url, results in found.items()}
    if len(joined) == 1:
        _show_result(args, console, joined[urls[0]])
    else:
        _show_comparison(joined, console, is_json=args.json, out=args.out)
    if lost := [result for result in joined.values() if result.lost_calls]:
        causes = "; ".join(dict.fromkeys(error for result in lost for error in result.errors))
        count_lost = sum(result.lost_calls for result in lost)
        calls = sum(result.calls for result in joined.values())
        raise ReplayError(f"{count_lost} of {calls} calls were lost: {causes}")
    return 0


def load_programs(args: argparse.Namespace) -> list[ProgramTrace]:
    """Read and fit the programs to play.

    Raises:
        TraceError: if the trace cannot be read or holds no program.
        InputError: if the bounds leave no room for a call.
    """
    programs = not_empty(load(args.trace, args.format, load_options(args)), args.trace)[: args.programs]
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
    _show_comparison(results, make_console(), is_json=args.json)
    return 0


def _show_comparison(
    results: Mapping[str, ReplayResult], console: Console, *, is_json: bool, out: Path | None = None
) -> None:
    differing, verdicts = differing_settings(results), verdicts_of(results)
    numbers = {label: result_to_json(item) | {"figures": figures(item)} for label, item in results.items()}
    judged = {label: dataclasses.asdict(verdict) for label, verdict in verdicts.items()}
    mapping = {"results": numbers, "verdicts": judged, "differing_settings": differing}
    if out is not None:
        out.write_text(json.dumps(mapping, indent=1) + "\n", encoding="utf-8")
    if is_json:
        print(json.dumps(mapping))
        return
    console.print(result_table(results))
    for line in differing:
        console.print(f"differs: {line}")
    if verdicts:
        console.print(ratio_table(next(iter(results)), verdicts))
    for label, verdict in verdicts.items():
        console.print(f"{label}: {verdict.text}", highlight=False, soft_wrap=True)


def _labels(paths: Sequence[Path]) -> list[str]:
    stems = [path.stem for path in paths]
    labels = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    if len(set(labels)) < len(labels):
        raise InputError("the same result file is named twice")
    return labels
