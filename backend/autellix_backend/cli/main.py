"""The `autellix` command: finds the subcommand, loads only its module, and turns errors into exit codes.

Exit codes: 0 success, 1 the engine or the gateway failed, 2 bad input or something not installed, 130
interrupted, 141 nobody reads the output. It imports the standard library only, so `autellix --help` works
without any extra.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from typing import cast

from autellix_backend.cli.commands import COMMANDS, Command
from autellix_backend.errors import CommandError
from autellix_backend.install import ENGINE, pip_install

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
PACKAGE = "autellix"

ALIKE = {"list": "ps", "start": "serve", "run": "serve"}
"""Commands of other tools, with ours for the same."""

COMMAND_GROUP = "autellix.commands"
"""Entry points of other packages: each names a mapping like `commands.COMMANDS`."""


class NotInstalledError(CommandError):
    """A subcommand needs a package that is not installed."""

    def __init__(self, command: str, package: str) -> None:
        remedy = pip_install("lab")
        if command == "serve":
            remedy = ENGINE
        elif command in COMMANDS:
            remedy = pip_install("gateway")
        super().__init__(f"`autellix {command}` needs {package}, which is not installed; expected {remedy}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `--help` and bad usage exit as argparse does."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), "")
    try:
        parser = make_parser([chosen])
        if arguments[:1] == [chosen] and chosen not in all_commands():
            parser.error(_unknown(chosen))
        args = parser.parse_args(arguments)
        code = cast("int", args.run(args))
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(PACKAGE):
            raise
        return _fail(NotInstalledError(chosen, error.name or str(error)))
    except CommandError as error:
        return _fail(error)
    except BrokenPipeError:
        # The reader wants no more, as in `autellix ps | head`; Python would write what is left at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def make_parser(chosen: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the arguments of the chosen subcommands."""
    parser = argparse.ArgumentParser(
        prog=PACKAGE,
        description="Program-aware serving for LLM agents.",
        epilog=f"`{PACKAGE} COMMAND --help` shows the options and an example of a command.",
    )
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {_version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)
    for name, command in all_commands().items():
        subparser = subparsers.add_parser(
            name,
            help=command.summary,
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


def _unknown(command: str) -> str:
    known = list(all_commands())
    near = ALIKE.get(command) or next(iter(difflib.get_close_matches(command, known, n=1)), None)
    hint = f"did you mean `{PACKAGE} {near}`?" if near else f"the commands are {', '.join(known)}"
    return f"there is no command {command!r}; {hint}"


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
