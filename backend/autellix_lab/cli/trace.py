"""`autellix trace`: recorded programs, or those of a gateway's history, in the formats of other tools."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autellix_backend.cli.arguments import count
from autellix_backend.cli.remote import RemoteGateway, add_remote_options
from autellix_lab.bench.arrivals import with_unique_ids
from autellix_lab.cli.arguments import InputError, run_action
from autellix_lab.report.otel import otel_trace
from autellix_lab.report.perfetto import perfetto_trace, recorded_timeline
from autellix_lab.report.weka import weka_session
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import read_traces

MAX_HISTORY = 1000
"""The gateway's limit for one answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    export = actions.add_parser("export", help="write programs for another tool")
    source = export.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "trace", type=Path, nargs="?", metavar="TRACE", help="a recorded trace, as .jsonl or .jsonl.gz"
    )
    source.add_argument(
        "--history",
        action="store_true",
        help="the ended programs of a running gateway, with what each call did in its engine",
    )
    formats = export.add_mutually_exclusive_group(required=True)
    formats.add_argument(
        "--perfetto", action="store_true", help="as a trace for ui.perfetto.dev and chrome://tracing"
    )
    formats.add_argument(
        "--weka",
        action="store_true",
        help="as weka traces, which inference-perf, AIPerf and GuideLLM replay: a folder, a file for each "
        "program",
    )
    formats.add_argument(
        "--otel",
        action="store_true",
        help="as OpenTelemetry traces, which inference-perf and GuideLLM replay: a folder, a file for each "
        "program",
    )
    export.add_argument(
        "-o", "--out", type=Path, required=True, metavar="PATH", help="the file or folder to write"
    )
    export.add_argument(
        "--limit", type=count, default=MAX_HISTORY, metavar="N", help="with --history: the last N programs"
    )
    add_remote_options(export)
    export.set_defaults(action=_export)


run = run_action


def _export(args: argparse.Namespace) -> None:
    if args.perfetto:
        timelines = list(_timelines(args))
        args.out.write_text(_compact(perfetto_trace(timelines)), encoding="utf-8")
        print(f"{args.out}: {len(timelines)} programs")
    elif args.weka:
        _export_folder(args, "--weka", weka_session)
    else:
        _export_folder(args, "--otel", otel_trace)


def _export_folder(
    args: argparse.Namespace, option: str, convert: Callable[[ProgramTrace], dict[str, Any] | None]
) -> None:
    if args.history:
        raise InputError(
            f"{option} needs a TRACE: a gateway's history lacks the prompts that calls have in common"
        )
    programs = with_unique_ids(read_traces(args.trace))
    found = [converted for program in programs if (converted := convert(program))]
    _check_times(args.trace, found)
    args.out.mkdir(parents=True, exist_ok=True)
    for number, converted in enumerate(found, start=1):
        (args.out / f"trace_{number:04}.json").write_text(_compact(converted) + "\n", encoding="utf-8")
    print(f"{args.out}: {len(found)} programs")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _check_times(trace: Path, found: Sequence[object]) -> None:
    if not found:
        raise InputError(f"{trace}: no program has the times of its calls, as recorded ones do")


def _timelines(args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    if args.history:
        gateway = RemoteGateway.from_args(args)
        for row in gateway.get(f"/history?limit={min(args.limit, MAX_HISTORY)}")["programs"]:
            yield gateway.get(f"/programs/{quote(row['program_id'], safe='')}/timeline")
        return
    programs = with_unique_ids(read_traces(args.trace))
    timelines = [timeline for program in programs if (timeline := recorded_timeline(program))]
    _check_times(args.trace, timelines)
    yield from timelines
