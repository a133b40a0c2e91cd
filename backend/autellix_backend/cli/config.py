"""`autellix config`: `show` prints the settings in force and their sources, `check` prints problems."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from autellix_backend.cli.options import add_preset_option, add_setting_options, layer_from_args
from autellix_backend.cli.terminal import Row, Terminal
from autellix_backend.settings import (
    Layer,
    Settings,
    SettingsError,
    build_settings,
    merged_layer,
    settings_to_mapping,
    unknown_variables,
)

DEFAULT = "default"
EXIT_UNUSABLE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two actions."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print every setting, its value and its source")
    show.add_argument("--json", action="store_true", help="print JSON")
    add_preset_option(show)
    add_setting_options(show)
    show.set_defaults(act=_show)
    check = actions.add_parser(
        "check", help="check for what `serve` would refuse or ignore; exit code 2 if there is any"
    )
    check.add_argument("file", type=Path, metavar="FILE", nargs="?", help="TOML file of settings")
    check.set_defaults(act=_check)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    code: int = args.act(args)
    return code


def _show(args: argparse.Namespace) -> int:
    shown = effective(layer_from_args(args))
    if args.json:
        print(json.dumps(shown, indent=2))
        return 0
    rows = [
        Row(cells=(name, json.dumps(entry["value"]), str(entry["source"]))) for name, entry in shown.items()
    ]
    print(*Terminal(width=500).table(("setting", "value", "source"), rows), sep="\n")
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print each problem and note of the file and the environment; 2 if there is a problem."""
    from autellix_backend.cli.config_check import notes_on, problems_of

    problems = unknown_variables()
    notes: list[str] = []
    try:
        layer = merged_layer(file=args.file)
    except SettingsError as error:
        problems.append(error.line)
        layer = merged_layer()
    settings, unusable = _usable(layer)
    problems += [*unusable, *problems_of(settings)]
    notes += notes_on(settings)
    for problem in problems:
        print(f"problem: {problem}")
    for note in notes:
        print(f"note: {note}")
    where = "the environment" if args.file is None else f"{args.file} and the environment"
    print(f"{where}: {f'problems: {len(problems)}' if problems else 'can be used'}")
    return EXIT_UNUSABLE if problems else 0


def _usable(layer: Layer) -> tuple[Settings, list[str]]:
    """Return the settings without those that cannot be used, and a sentence for each of these."""
    problems: list[str] = []
    while True:
        try:
            return build_settings(layer), problems
        except SettingsError as error:
            problems += [problem.line for problem in error.all]
            unusable = {problem.field for problem in error.all}
            kept = {name: raw for name, raw in layer.items() if name not in unusable}
            # A rule over several fields may name one that has its default: then their section goes.
            sections = {field.partition(".")[0] for field in unusable}
            same = [name for name in layer if name.partition(".")[0] not in sections]
            layer = kept if len(kept) < len(layer) else {name: layer[name] for name in same}


def effective(layer: Layer) -> dict[str, dict[str, object]]:
    """Return the value and the source of each setting by its dotted name, secrets hidden."""
    sections = settings_to_mapping(build_settings(layer))
    return {
        name: {"value": value, "source": layer[name].source if name in layer else DEFAULT}
        for section, values in sections.items()
        for name, value in ((f"{section}.{key}", value) for key, value in values.items())
    }
