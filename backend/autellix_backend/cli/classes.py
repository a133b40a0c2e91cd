"""`autellix classes`: the sizes of a gateway's programs by class, and how well they are predicted."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from autellix_backend.cli.program_table import add_wide_option, make_console
from autellix_backend.cli.remote import RemoteGateway, add_remote_options, print_json

SHOWN_CALLS = (1, 2, 4, 8)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the gateway."""
    add_remote_options(parser)
    add_wide_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    answer = RemoteGateway.from_args(args).get("/classes")
    if args.json:
        print_json(answer)
    elif answer["classes"]:
        make_console(is_wide=args.wide).print(class_table(answer["classes"]))
    else:
        print("No classes: no program has begun since the gateway started.")
    return 0


def class_table(classes: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with one line per class."""
    table = Table(box=None, header_style="bold", caption="errors at the arrival of a call; * is predicted")
    headings = ("CLASS", "TENANT", "PROGRAMS", "MEDIAN", "P90", "SPREAD")
    for heading in (*headings, *(f"CALL {call}" for call in SHOWN_CALLS), "DRIFTS"):
        is_name = heading in headings[:2]
        # Names are folded in a narrow terminal, never cut.
        table.add_column(
            heading,
            justify="left" if is_name else "right",
            no_wrap=not is_name,
            overflow="fold" if is_name else "ellipsis",
        )
    table.add_column("PREDICTIONS")
    for row in classes:
        errors = {error["call"]: error for error in row["errors"]}
        table.add_row(
            row["name"],
            row["tenant"] or "-",
            str(row["ended"]),
            _tokens(row["median_work"]),
            _tokens(row["p90_work"]),
            f"{row['spread']:.2f}",
            *(_error(errors[call]) for call in SHOWN_CALLS),
            str(row["drifts"]),
            row["verdict"],
            style="yellow" if row["is_drifting"] else None,
        )
    return table


def _tokens(work: float | None) -> str:
    return "-" if work is None else f"{work:,.0f}"


def _error(error: Mapping[str, Any]) -> str:
    if error["error"] is None:
        return "-"
    return f"{error['error']:.2f}{'*' if error['is_predicted'] else ''}"
