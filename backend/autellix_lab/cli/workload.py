"""`autellix workload`: convert traces, generate programs, and describe both."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.table import Table

from autellix_backend.cli.arguments import count
from autellix_lab.cli.arguments import add_load_options, add_tree_scale, adder, load_options, run_action
from autellix_lab.cli.console import make_console, number_table
from autellix_lab.workload.describe import PAPER_ROWS, PaperRow, Statistics, describe
from autellix_lab.workload.generate import WORKLOADS, generate_programs
from autellix_lab.workload.loaders import load
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import not_empty, write_traces

DESCRIBED_PROGRAMS = 3000
"""Default number of programs generated for a description: enough for the tails to show."""

COLUMNS = (
    ("programs", "programs", "{:d}"),
    ("calls per program", "calls_per_program", "{:.2f}"),
    ("max", "calls_max", "{:d}"),
    ("new prompt tokens", "new_prefill_tokens", "{:.1f}"),
    ("whole prompt", "prompt_tokens", "{:.1f}"),
    ("decode tokens", "decode_tokens", "{:.1f}"),
    ("parallel", "parallel_share", "{:.0%}"),
    ("width", "width", "{:.2f}"),
    ("depth", "depth", "{:.1f}"),
)
"""Title, field of the statistics, and format of each column of the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    convert = actions.add_parser("convert", help="write another format's traces as program traces")
    convert.add_argument("input", type=Path, metavar="IN", help="file or folder to read")
    convert.add_argument("output", type=Path, metavar="OUT", help=".jsonl or .jsonl.gz file to write")
    add_load_options(convert)
    convert.set_defaults(action=_convert)

    generate = actions.add_parser("generate", help="write generated programs")
    generate.add_argument("kind", choices=WORKLOADS, metavar="KIND", help=", ".join(WORKLOADS))
    generate.add_argument("output", type=Path, metavar="OUT", help=".jsonl or .jsonl.gz file to write")
    _add_generate_options(generate, default=100)
    generate.set_defaults(action=_generate)

    show = actions.add_parser("describe", help="print statistics beside those of the paper")
    show.add_argument(
        "sources", nargs="+", metavar="FILE|KIND", help=f"traces, or {', '.join(WORKLOADS)} to generate"
    )
    show.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_load_options(show)
    _add_generate_options(show, default=DESCRIBED_PROGRAMS)
    show.set_defaults(action=_describe)


run = run_action


def _add_generate_options(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "-n",
        "--programs",
        type=count,
        default=default,
        metavar="N",
        help=f"number of programs (default: {default})",
    )
    adder(parser)("--seed", "seed of the generated programs", int, 0)
    add_tree_scale(parser)


def _convert(args: argparse.Namespace) -> None:
    programs = load(args.input, args.format, load_options(args))
    _write(args.output, programs)


def _generate(args: argparse.Namespace) -> None:
    _write(args.output, _generated(args.kind, args))


def _describe(args: argparse.Namespace) -> None:
    options = load_options(args)
    found = {
        source: describe(
            _generated(source, args)
            if source in WORKLOADS
            else not_empty(load(Path(source), args.format, options), source)
        )
        for source in args.sources
    }
    if args.json:
        paper = {kind: dataclasses.asdict(row) for kind, row in PAPER_ROWS.items()}
        measured = {source: dataclasses.asdict(statistics) for source, statistics in found.items()}
        print(json.dumps({"measured": measured, "paper": paper}))
    else:
        make_console().print(_table(found, PAPER_ROWS.values()))


def _table(found: Mapping[str, Statistics], paper: Iterable[PaperRow]) -> Table:
    """Return the table of the statistics, with the paper's rows below."""
    table = number_table("", *(title for title, _, _ in COLUMNS))
    for name, statistics in found.items():
        table.add_row(name, *_cells(statistics))
    for row in paper:
        table.add_row(f"paper: {row.name}", *_cells(row))
    return table


def _cells(row: Statistics | PaperRow) -> list[str]:
    values = [getattr(row, name, None) for _, name, _ in COLUMNS]
    return [
        "" if value is None else form.format(value)
        for value, (_, _, form) in zip(values, COLUMNS, strict=True)
    ]


def _generated(kind: str, args: argparse.Namespace) -> list[ProgramTrace]:
    return generate_programs(kind, args.programs, args.seed, tree_scale=args.tree_scale)


def _write(path: Path, programs: list[ProgramTrace]) -> None:
    write_traces(path, programs)
    calls = sum(len(program.calls) for program in programs)
    print(f"{path}: {len(programs)} programs, {calls} calls")
