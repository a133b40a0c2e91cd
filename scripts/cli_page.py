#!/usr/bin/env python3
"""Write docs/reference/cli.md from the argument parsers.

.venv/bin/python scripts/cli_page.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from unittest import mock

from autellix_backend.cli.main import all_commands, make_parser
from autellix_backend.cli.options import PREFIX

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
LABORATORY = "autellix_lab"
NOT_SHOWN = (argparse._HelpAction, argparse._SubParsersAction)
HEAD = """# The command line

<!-- Written by scripts/cli_page.py. -->

All commands of `autellix` and their options, which `--help` shows too. Commands that ask a running gateway
find it by `AUTELLIX_BASE_URL` and `AUTELLIX_API_KEY`, or `--url` and `--api-key`. An option that several
commands share is described under the first one.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | an engine or the gateway failed, calls were lost |
| 2 | bad input, or something that is not installed |
| 130 | interrupted |
"""
LABORATORY_HEAD = """## The laboratory

These need the extra `lab`; [record, replay, simulate](../bench.md) explains them, and `--help` has their
arguments.

| such as | does |
|---|---|
"""


def page() -> str:
    """Return the page; it does not depend on this process's environment."""
    commands = all_commands()
    with mock.patch.dict(os.environ):
        for variable in ("AUTELLIX_BASE_URL", "AUTELLIX_API_KEY"):
            # The help shows the address in force.
            os.environ.pop(variable, None)
        parsers = _below(make_parser(list(commands)))
    parts, laboratory = [HEAD], [LABORATORY_HEAD]
    places: dict[str, str] = {}
    for name, command in commands.items():
        summary = f"{command.summary[0].upper()}{command.summary[1:]}."
        actions = _actions(parsers[name])
        if command.module.startswith(LABORATORY):
            laboratory.append(f"| `{command.example}` | {summary} |\n")
            continue
        parts.append(f"## `autellix {name}`\n\n{summary}\n\n```sh\n{command.example}\n```\n")
        parts += _arguments(parsers[name], f"autellix {name}", places)
        for action, (about, child) in actions.items():
            whole = f"autellix {name} {action}"
            parts.append(f"### `{whole}`\n\n{about[:1].upper()}{about[1:]}.\n")
            parts += _arguments(child, whole, places)
    return "\n".join([*parts, "".join(laboratory)])


def _actions(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return what a command's own subcommands are about, and their parsers."""
    about = {
        choice.dest: choice.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }
    return {action: (about.get(action, ""), child) for action, child in _below(parser).items()}


def _arguments(parser: argparse.ArgumentParser, command: str, places: dict[str, str]) -> list[str]:
    """Return the table of a parser's arguments, and the names of those that another command has described.

    Args:
        parser: The command's parser.
        command: The command, as its heading has it.
        places: The command that describes each row; those of this command are added.
    """
    rows: list[str] = []
    known: dict[str, list[str]] = {}
    settings: list[str] = []
    for action in parser._actions:
        if isinstance(action, NOT_SHOWN):
            continue
        if action.dest.startswith(PREFIX):
            settings.append(f"`{action.option_strings[-1]}`")
            continue
        help_text = (action.help or "") % {**vars(action), "prog": parser.prog} if action.help else ""
        row = f"| {_shown(action)} | {_cell(help_text)} |"
        if action.option_strings and row in places:
            known.setdefault(places[row], []).append(f"`{action.option_strings[-1]}`")
        else:
            places[row] = command
            rows.append(row)
    table = ["\n".join(["| argument | meaning |", "|---|---|", *rows, ""])] if rows else []
    lines = [f"As in {_link(place)}: {', '.join(names)}.\n" for place, names in known.items()]
    if settings:
        names = ", ".join(settings)
        place = places.setdefault(names, command)
        names = names if place == command else f"those of {_link(place)}"
        lines.append(f"Options that are [settings](settings.md): {names}.\n")
    return table + lines


def _link(command: str) -> str:
    """Return a link to the heading of a command."""
    return f"[`{command}`](#{command.replace(' ', '-')})"


def _shown(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = _cell(str(value))
    if not action.option_strings:
        return f"`{value}`" if action.nargs != "?" else f"`[{value}]`"
    named = ", ".join(f"`{option}`" for option in action.option_strings)
    if action.nargs == 0:
        return named
    return f"{named} `[{value}]`" if action.nargs == "?" else f"{named} `{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {
        name: child
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, child in action.choices.items()
    }


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
