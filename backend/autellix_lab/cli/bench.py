"""`autellix bench`: replay recorded programs against a live endpoint, and compare the results."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autellix_backend.cli.arguments import InputError, above_zero, count
from autellix_backend.gateway.recording.trace import ProgramTrace, TraceError, read_traces
from autellix_lab.bench.replay import Job, ReplayError, replay
from autellix_lab.bench.result_file import (
    ReplayResult,
    ResultFileError,
    make_result,
    read_result,
    result_to_json,
)
from autellix_lab.bench.result_table import (
    differing_settings,
    figures,
    result_table,
    write_distributions,
)
from autellix_lab.bench.results import CallResult
from autellix_lab.cli.arguments import add_fit_options
from autellix_lab.workload.arrivals import (
    all_at_once,
    bursty_arrivals,
    poisson_arrivals,
    recorded_arrivals,
)
from autellix_lab.workload.fit import Fit, apply_fit

ARRIVALS = ("poisson", "recorded", "burst", "all")
BURST_VARIATION = 3.0
"""Coefficient of variation of the gaps between bursty arrivals; a Poisson process has 1."""
MODELS_TIMEOUT_S = 10.0
LONGEST_RUN_S = 7 * 86400.0
WIDTH = 160
"""Columns of the tables where no terminal says how wide it is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_replay(actions.add_parser("replay", help="play a trace against an endpoint, and measure"))
    _add_compare(actions.add_parser("compare", help="show results side by side, as ratios to the first"))


def run(args: argparse.Namespace) -> int:
    """Run the action; 0 success, 1 calls were lost or the endpoint failed, 2 bad input."""
    try:
        code: int = args.action(args)
    except (TraceError, ResultFileError, InputError, OSError) as error:
        return _fail(str(error), 2)
    except ReplayError as error:
        return _fail(str(error), 1)
    return code


def _add_replay(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", type=Path, metavar="TRACE", help="programs, as .jsonl or .jsonl.gz")
    add("--url", required=True, help="root of any OpenAI-compatible server, with or without /v1")
    add("--model", help="model to ask for (default: the first that the server lists)")
    add("--programs", type=count, metavar="N", help="play the first N programs only")
    add("--rate", type=above_zero, metavar="R", help="programs per second; a Poisson process by itself")
    add(
        "--arrivals",
        choices=ARRIVALS,
        help="recorded: as in the trace, with --rate rescaled; burst: in bursts, with --rate; all: at once "
        "(default: poisson with --rate, else recorded)",
    )
    add_fit_options(parser, max_context=sys.maxsize, max_context_help="no bound")
    add("--timeout", type=above_zero, default=600.0, metavar="S", help="longest call (default: 600 s)")
    add("--seed", type=int, default=0, help="of arrivals and words (default: 0)")
    add("--out", type=Path, metavar="FILE", help="write the result as JSON, for `autellix bench compare`")
    add("--json", action="store_true", help="print the result as JSON instead of a table")
    parser.set_defaults(action=_replay)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="results of `bench replay`")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the distributions, as .png or .svg")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON instead of a table")
    parser.set_defaults(action=_compare)


def _replay(args: argparse.Namespace) -> int:
    console = _console(is_stderr=args.json)
    programs = load_programs(args)
    arrivals_s = plan_arrivals(args, programs)
    url = args.url.rstrip("/").removesuffix("/v1")
    model = args.model or first_model(url)
    if args.out is not None:
        # A long run whose result cannot be written would be lost.
        args.out.open("a").close()
    setting = _setting(args, programs, url, model)
    job = Job(
        base_url=url,
        model=model,
        programs=programs,
        arrivals_s=arrivals_s,
        # By the time too: a second run against one server must not find the words of the first in its cache.
        salt=f"{args.seed}:{setting['when']}",
        call_timeout_s=args.timeout,
        timeout_s=LONGEST_RUN_S,
        api_key=None,
    )
    calls = sum(len(program.calls) for program in programs)
    with _progress(console, f"{len(programs)} programs", calls) as on_result:
        results = replay(job, on_result)
    result = make_result(setting, programs, arrivals_s, results)
    _show_result(args, console, result)
    if result.lost_calls:
        causes = "; ".join(result.errors)
        return _fail(f"{result.lost_calls} of {result.calls} calls were lost: {causes}", 1)
    return 0


def load_programs(args: argparse.Namespace) -> list[ProgramTrace]:
    """Read the programs to play and fit them.

    Raises:
        TraceError: if the trace cannot be read or holds no program.
        InputError: if the bounds leave no room for a call.
    """
    programs = read_traces(args.trace)[: args.programs]
    if not programs:
        raise TraceError(str(args.trace), "holds no program")
    try:
        fit = Fit(length_scale=args.length_scale, max_context_tokens=args.max_context, gap_rule=args.gaps)
    except ValueError as error:
        raise InputError(f"--length-scale, --max-context: {error}") from error
    return _with_unique_ids([apply_fit(program, fit) for program in programs])


def plan_arrivals(args: argparse.Namespace, programs: Sequence[ProgramTrace]) -> tuple[float, ...]:
    """Return when each program arrives, in seconds from the start.

    Raises:
        InputError: if the options contradict each other, or the trace lacks the times.
    """
    kind = args.arrivals or ("poisson" if args.rate is not None else "recorded")
    count = len(programs)
    if kind == "all":
        if args.rate is not None:
            raise InputError("--rate has no meaning with --arrivals all")
        return all_at_once(count)
    if kind == "recorded":
        return _recorded(args, programs)
    if args.rate is None:
        raise InputError(f"--arrivals {kind} needs --rate")
    if kind == "burst":
        return bursty_arrivals(count, args.rate, args.seed, variation=BURST_VARIATION)
    return poisson_arrivals(count, args.rate, args.seed)


def _recorded(args: argparse.Namespace, programs: Sequence[ProgramTrace]) -> tuple[float, ...]:
    times_s = [program.arrival_s for program in programs if program.arrival_s is not None]
    if len(times_s) < len(programs):
        raise InputError(
            f"{args.trace}: {len(programs) - len(times_s)} of {len(programs)} programs have no arrival_s; "
            "expected --rate R or --arrivals all"
        )
    first_s = min(times_s)
    if args.rate is None:
        return tuple(time_s - first_s for time_s in times_s)
    # Programs are listed by their ends; each keeps its own place among the arrivals.
    order = sorted(range(len(times_s)), key=lambda index: (times_s[index], index))
    try:
        scaled = recorded_arrivals([times_s[index] for index in order], len(order), args.rate, args.seed)
    except ValueError as error:
        raise InputError(f"--arrivals recorded: {error}") from error
    found = dict(zip(order, scaled, strict=True))
    return tuple(found[index] for index in range(len(times_s)))


def _with_unique_ids(programs: Sequence[ProgramTrace]) -> list[ProgramTrace]:
    """Tell programs of one id apart: results are found by it."""
    seen: dict[str, int] = {}
    unique: list[ProgramTrace] = []
    for program in programs:
        number = seen[program.program_id] = seen.get(program.program_id, 0) + 1
        name = program.program_id if number == 1 else f"{program.program_id}#{number}"
        unique.append(replace(program, program_id=name))
    return unique


def first_model(url: str) -> str:
    """Return the first model that a server lists.

    Raises:
        ReplayError: if it does not answer or lists none.
    """
    problem = "lists no model"
    try:
        with urllib.request.urlopen(url + "/v1/models", timeout=MODELS_TIMEOUT_S) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        problem = f"does not answer /v1/models ({error})"
    except (ValueError, LookupError, TypeError):
        pass
    raise ReplayError(f"{url} {problem}; expected an OpenAI-compatible server, or --model NAME")


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
        "arrivals": args.arrivals or ("poisson" if args.rate is not None else "recorded"),
        "rate_per_s": args.rate,
        "length_scale": args.length_scale,
        "max_context_tokens": None if args.max_context == sys.maxsize else args.max_context,
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
    if result.calls_without_account:
        console.print(f"{result.calls_without_account} calls came without an account of the engine")


def _compare(args: argparse.Namespace) -> int:
    results = dict(zip(_labels(args.results), map(read_result, args.results), strict=True))
    differing = differing_settings(results)
    if args.plot is not None:
        _plot(args.plot, results)
    if args.json:
        numbers = {
            label: result_to_json(item) | {"figures": figures(item)} for label, item in results.items()
        }
        print(json.dumps({"results": numbers, "differing_settings": differing}))
        return 0
    console = _console(is_stderr=False)
    console.print(result_table(results))
    for line in differing:
        console.print(f"not the same in all: {line}")
    return 0


def _plot(path: Path, results: dict[str, ReplayResult]) -> None:
    try:
        write_distributions(path, results)
    except ModuleNotFoundError as error:
        raise InputError(f"--plot needs {error.name}; expected `pip install 'autellix[lab]'`") from error
    except ValueError as error:
        raise InputError(f"--plot {path}: {error}") from error


def _labels(paths: Sequence[Path]) -> list[str]:
    stems = [path.stem for path in paths]
    labels = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    if len(set(labels)) < len(labels):
        raise InputError("the same result file is named twice")
    return labels


def _console(*, is_stderr: bool) -> Console:
    console = Console(stderr=is_stderr)
    return console if console.is_terminal else Console(stderr=is_stderr, width=WIDTH)


@contextlib.contextmanager
def _progress(console: Console, title: str, calls: int) -> Iterator[Callable[[CallResult], None]]:
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=calls)
        yield lambda _: progress.advance(task)


def _fail(message: str, code: int) -> int:
    print(f"autellix bench: {message}", file=sys.stderr)
    return code
