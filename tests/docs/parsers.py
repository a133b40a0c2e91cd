"""The argument parsers of the programs that the documentation calls, without running them."""

from __future__ import annotations

import argparse
import functools
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from unittest import mock

from autellix_backend.cli import main as cli


class BadCommandError(Exception):
    """A command line that its program refuses."""


class _FoundParser(BaseException):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


@functools.cache
def autellix_parser(subcommand: str) -> argparse.ArgumentParser:
    """Return the parser of a subcommand of `autellix`.

    Raises:
        BadCommandError: if there is none.
    """
    commands = cli.all_commands()
    if subcommand not in commands:
        raise BadCommandError(f"autellix has no subcommand {subcommand!r}")
    parser = argparse.ArgumentParser(prog=f"autellix {subcommand}")
    importlib.import_module(commands[subcommand].module).add_arguments(parser)
    return parser


@functools.cache
def script_parser(path: Path) -> argparse.ArgumentParser | None:
    """Return the parser of a script; None if it has none."""

    def find(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _FoundParser(parser)

    before = set(sys.modules)
    try:
        with (
            mock.patch.object(argparse.ArgumentParser, "parse_args", find),
            mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
            mock.patch.object(sys, "argv", [str(path)]),
        ):
            runpy.run_path(str(path), run_name="__main__")
    except _FoundParser as found:
        return found.parser
    finally:
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", "") == str(path.parent / f"{name}.py"):
                del sys.modules[name]
    return None


def check(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Check that a parser takes a command line; words in capitals stand for values of any type.

    Raises:
        BadCommandError: if it does not.
    """
    try:
        _parse(parser, words)
    except BadCommandError:
        _parse(parser, ["1" if word.isupper() else word for word in words])


def check_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Check that a parser, or that of a subcommand named among the words, has each option among them.

    Raises:
        BadCommandError: if it has not.
    """
    parsers = _below(parser, words)
    known = {option for each in parsers for option in each._option_string_actions}
    for word in words:
        option = word.split("=")[0].rstrip(".,;…")
        if word.startswith("--") and option not in known:
            raise BadCommandError(f"{parser.prog} has no option {option}")


def _below(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[argparse.ArgumentParser]:
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                if name in words:
                    found += _below(child, words)
    return found


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    def fail(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise BadCommandError(f"{self.prog} {' '.join(words)}: {message}")

    with mock.patch.object(argparse.ArgumentParser, "error", fail):
        parser.parse_args(list(words))
