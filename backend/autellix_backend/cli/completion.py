"""`autellix completion SHELL`: the completion of a shell, which shtab makes of the argument parsers."""

from __future__ import annotations

import argparse
import importlib

import shtab

from autellix_backend.cli import main


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="the shell to complete in")


def run(args: argparse.Namespace) -> int:
    """Print the completion, for the shell to evaluate or to load from a file."""
    loaded = [name for name in main.all_commands() if _can_be_loaded(name)]
    print(shtab.complete(main.make_parser(loaded), args.shell))
    return 0


def _can_be_loaded(name: str) -> bool:
    """Return whether a command's packages are installed; without them only its name is completed."""
    try:
        importlib.import_module(main.all_commands()[name].module)
    except ModuleNotFoundError:
        return False
    return True
