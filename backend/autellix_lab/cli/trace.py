"""`autellix trace`: recorded programs, or those of a gateway's history, in the formats of other tools."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autellix_backend.cli.arguments import count
from autellix_backend.cli.remote import RemoteGateway, add_remote_options
from autellix_lab.bench.arrivals import with_unique_ids
from autellix_lab.cli.arguments import InputError, run_action
from autellix_lab.report.perfetto import perfetto_trace, recorded_timeline
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
    export.add_argument(
        "--perfetto",
        action="store_true",
        required=True,
        help="as a trace for ui.perfetto.dev and chrome://tracing",
    )
    export.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="the file to write")
    export.add_argument(
        "--limit", type=count, default=MAX_HISTORY, metavar="N", help="with --history: the last N programs"
    )
    add_remote_options(export)
    export.set_defaults(action=_export)


run = run_action


def _export(args: argparse.Namespace) -> None:
    timelines = list(_timelines(args))
    args.out.write_text(json.dumps(perfetto_trace(timelines), separators=(",", ":")), encoding="utf-8")
    print(f"{args.out}: {len(timelines)} programs")


def _timelines(args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    if args.history:
        gateway = RemoteGateway.from_args(args)
        for row in gateway.get(f"/history?limit={min(args.limit, MAX_HISTORY)}")["programs"]:
            yield gateway.get(f"/programs/{quote(row['program_id'], safe='')}/timeline")
        return
    programs = with_unique_ids(read_traces(args.trace))
    timelines = [timeline for program in programs if (timeline := recorded_timeline(program))]
    if not timelines:
        raise InputError(f"{args.trace}: no program has the times of its calls, as recorded ones do")
    yield from timelines
