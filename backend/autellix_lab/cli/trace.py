"""`autellix trace`: recorded programs, or those of a gateway's history, in the formats of other tools."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autellix_backend.cli.arguments import count
from autellix_backend.cli.remote import RemoteGateway, add_remote_options
from autellix_lab.bench.arrivals import with_unique_ids
from autellix_lab.cli.arguments import InputError, run_action
from autellix_lab.report.perfetto import perfetto_trace, recorded_timeline
from autellix_lab.report.weka import weka_session
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
    if args.weka:
        _export_weka(args)
        return
    timelines = list(_timelines(args))
    args.out.write_text(json.dumps(perfetto_trace(timelines), separators=(",", ":")), encoding="utf-8")
    print(f"{args.out}: {len(timelines)} programs")


def _export_weka(args: argparse.Namespace) -> None:
    if args.history:
        raise InputError(
            "--weka needs a TRACE: a gateway's history lacks the prompts that calls have in common"
        )
    programs = with_unique_ids(read_traces(args.trace))
    sessions = [session for program in programs if (session := weka_session(program))]
    _check_times(args.trace, sessions)
    args.out.mkdir(parents=True, exist_ok=True)
    for number, session in enumerate(sessions, start=1):
        text = json.dumps(session, separators=(",", ":"))
        (args.out / f"trace_{number:04}.json").write_text(text, encoding="utf-8")
    print(f"{args.out}: {len(sessions)} programs")


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
