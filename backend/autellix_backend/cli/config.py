"""`autellix config`: `show` prints the settings in force and their sources, `check` checks a file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autellix_backend.cli.options import add_setting_options, layer_from_args
from autellix_backend.settings import Layer, build_settings, load_settings, settings_to_mapping

DEFAULT = "default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two actions."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print every setting, its value and where that comes from")
    show.add_argument("--json", action="store_true", help="print JSON")
    add_setting_options(show)
    show.set_defaults(act=_show)
    check = actions.add_parser("check", help="check a file of settings; exit code 2 if it cannot be used")
    check.add_argument("file", type=Path, metavar="FILE", help="TOML file of settings")
    check.set_defaults(act=_check)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    args.act(args)
    return 0


def _show(args: argparse.Namespace) -> None:
    shown = effective(layer_from_args(args))
    if args.json:
        print(json.dumps(shown, indent=2))
        return
    table = Table("setting", "value", "source", box=None, pad_edge=False)
    for name, entry in shown.items():
        table.add_row(name, json.dumps(entry["value"]), str(entry["source"]))
    # A pipe gets whole values, not lines cut to a terminal's width.
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 500, highlight=False).print(table)


def _check(args: argparse.Namespace) -> None:
    load_settings(file=args.file, environ={})
    print(f"{args.file} can be used")


def effective(layer: Layer) -> dict[str, dict[str, object]]:
    """Return the value and the source of each setting by its dotted name, secrets hidden."""
    sections = settings_to_mapping(build_settings(layer))
    return {
        name: {"value": value, "source": layer[name].source if name in layer else DEFAULT}
        for section, values in sections.items()
        for name, value in ((f"{section}.{key}", value) for key, value in values.items())
    }
