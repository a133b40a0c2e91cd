"""Groups of options that several of the laboratory's commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from autellix_backend.cli.arguments import above_zero, count
from autellix_backend.core.names import present_name
from autellix_backend.errors import CommandError
from autellix_lab.workload.fit import NO_GAPS, RECORDED_GAPS, Fit, GapRule
from autellix_lab.workload.loaders import LOADERS, LoadOptions
from autellix_lab.workload.tokens import load_tokenizer


class InputError(CommandError):
    """Arguments that do not fit together, or do not fit the data; the message is for the user."""


def run_action(args: argparse.Namespace) -> int:
    """Run the chosen action of a command; return its exit code.

    Raises:
        CommandError: if it fails in a way that the user can act on.
    """
    try:
        return args.action(args) or 0
    except OSError as error:
        raise InputError(str(error)) from error


def names_of(known: Sequence[str], text: str, least: int = 1) -> tuple[str, ...]:
    """Return comma-separated names, each once, of those that are known."""
    names = tuple(dict.fromkeys(present_name(name.strip(), known) for name in text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown or len(names) < least:
        some = "two or more" if least > 1 else "some"
        raise argparse.ArgumentTypeError(
            f"{','.join(unknown) or text!r}; expected {some} of {', '.join(known)}"
        )
    return names


def numbers(text: str, *, example: str) -> tuple[float, ...]:
    """Return comma-separated finite numbers above zero; the message of an error shows the example."""
    try:
        return tuple(above_zero(item) for item in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r}; expected comma-separated numbers above zero such as {example}"
        ) from None


def gap_rule(text: str) -> GapRule:
    """Return the rule that `zero`, `recorded` or `capped:SECONDS` names."""
    if text in ("zero", "recorded"):
        return NO_GAPS if text == "zero" else RECORDED_GAPS
    kind, _, cap = text.partition(":")
    try:
        if kind != "capped":
            raise ValueError
        return GapRule(float(cap))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; expected zero, recorded or capped:SECONDS") from None


class AddOption(Protocol):
    """Declares an option with its help, type and default; the help states the default."""

    def __call__(
        self, name: str, text: str, kind: Callable[[str], Any] = str, default: Any = None, **more: Any
    ) -> None:
        """Declare it; `more` is as for argparse."""
        ...


def adder(parser: argparse._ActionsContainer) -> AddOption:
    """Return a function that declares options of a parser."""

    def add(name: str, text: str, kind: Callable[[str], Any] = str, default: Any = None, **more: Any) -> None:
        shown = default if isinstance(default, tuple) else () if default is None else (default,)
        if shown:
            values = (f"{value:g}" if isinstance(value, float) else str(value) for value in shown)
            text += f" (default: {','.join(values)})"
        if "choices" in more and kind is str:
            kind = partial(present_name, names=more["choices"])
        parser.add_argument(name, type=kind, default=default, help=text, **more)

    return add


def add_json(parser: argparse.ArgumentParser, text: str = "print JSON instead of tables") -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help=text)


def add_fit_options(parser: argparse.ArgumentParser, *, max_context: int | None = None) -> None:
    """Declare how programs are fitted: `length_scale`, `max_context` (tokens) and `gaps`."""
    add = adder(parser)
    add("--length-scale", "factor on the lengths of prompts and answers", above_zero, 1.0, metavar="X")
    longest = "longest prompt with answer, in tokens; a longer history starts over"
    longest += " (default: no bound)" if max_context is None else ""
    add("--max-context", longest, count, max_context, metavar="N")
    gaps = "time between calls for tools and people (default: recorded)"
    parser.add_argument(
        "--gaps", type=gap_rule, default=RECORDED_GAPS, metavar="zero|recorded|capped:S", help=gaps
    )


def fit_of(args: argparse.Namespace) -> Fit:
    """Return what `add_fit_options` declared.

    Raises:
        InputError: if the bounds leave no room for a call.
    """
    try:
        return Fit(
            length_scale=args.length_scale,
            max_context_tokens=args.max_context or sys.maxsize,
            gap_rule=args.gaps,
        )
    except ValueError as error:
        raise InputError(f"--length-scale, --max-context: {error}") from error


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Declare how trace files are read: `format` and `tokenizer`."""
    add = adder(parser)
    add("--format", "format of the input (default: detected from the file)", choices=LOADERS)
    tokenizer = "counts the tokens of texts (default: one token for 4 bytes)"
    add("--tokenizer", tokenizer, metavar="NAME_OR_PATH")


def load_options(args: argparse.Namespace) -> LoadOptions:
    """Return what `add_load_options` declared.

    Raises:
        TokenizerError: if the tokenizer cannot be loaded.
    """
    if args.tokenizer is None:
        return LoadOptions()
    return LoadOptions(count_tokens=load_tokenizer(args.tokenizer), tokenizer=args.tokenizer)


def add_tree_scale(parser: argparse.ArgumentParser) -> None:
    """Declare the factor on the number of a generated tree's calls, `tree_scale`."""
    adder(parser)("--tree-scale", "factor on a tree's number of calls", above_zero, 1.0, metavar="X")
