"""Groups of options that several of the laboratory's commands share."""

from __future__ import annotations

import argparse

from autellix_backend.cli.arguments import above_zero, count
from autellix_backend.errors import CommandError
from autellix_lab.workload.fit import NO_GAPS, RECORDED_GAPS, Fit, GapRule
from autellix_lab.workload.loaders import LOADERS, LoadOptions
from autellix_lab.workload.tokens import load_tokenizer


class InputError(CommandError):
    """Arguments that do not fit together, or do not fit the data; the message is for the user."""


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


def add_fit_options(parser: argparse.ArgumentParser, *, max_context: int, max_context_help: str) -> None:
    """Declare how programs are fitted: `length_scale`, `max_context` (tokens) and `gaps`."""
    add = parser.add_argument
    add("--length-scale", type=above_zero, default=1.0, metavar="X", help="factor on lengths (default: 1)")
    add(
        "--max-context",
        type=count,
        default=max_context,
        metavar="N",
        help="longest prompt with answer, in tokens; a longer history starts over "
        f"(default: {max_context_help})",
    )
    add(
        "--gaps",
        type=gap_rule,
        default=RECORDED_GAPS,
        metavar="zero|recorded|capped:S",
        help="time between calls for tools and people (default: recorded)",
    )


def fit_of(args: argparse.Namespace) -> Fit:
    """Return what `add_fit_options` declared.

    Raises:
        InputError: if the bounds leave no room for a call.
    """
    try:
        return Fit(length_scale=args.length_scale, max_context_tokens=args.max_context, gap_rule=args.gaps)
    except ValueError as error:
        raise InputError(f"--length-scale, --max-context: {error}") from error


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Declare how trace files are read: `format` and `tokenizer`."""
    add = parser.add_argument
    add("--format", choices=LOADERS, help="format of the input (default: detected from the file)")
    add(
        "--tokenizer",
        metavar="NAME_OR_PATH",
        help="counts the tokens of texts (default: one token for 4 bytes)",
    )


def load_options(args: argparse.Namespace) -> LoadOptions:
    """Return what `add_load_options` declared.

    Raises:
        TokenizerError: if the tokenizer cannot be loaded.
    """
    if args.tokenizer is None:
        return LoadOptions()
    return LoadOptions(count_tokens=load_tokenizer(args.tokenizer), tokenizer=args.tokenizer)


def add_tree_scale(parser: argparse.ArgumentParser, default: float = 1.0) -> None:
    """Declare the factor on the number of a generated tree's calls, `tree_scale`."""
    parser.add_argument(
        "--tree-scale",
        type=above_zero,
        default=default,
        metavar="X",
        help=f"factor on a tree's number of calls (default: {default:g})",
    )
