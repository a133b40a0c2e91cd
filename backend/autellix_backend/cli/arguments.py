"""Argument types that several commands share."""

from __future__ import annotations

import argparse
import math


class InputError(Exception):
    """Arguments that do not fit together, or do not fit the data; the message is for the user."""


def count(text: str) -> int:
    """Return a whole number above zero."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}; expected a whole number above zero")
    return value


def above_zero(text: str) -> float:
    """Return a finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"is {text!r}; expected a number above zero")
    return value


def numbers(text: str, *, example: str) -> tuple[float, ...]:
    """Return comma-separated finite numbers above zero; the message of an error shows the example."""
    try:
        return tuple(above_zero(item) for item in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r}; expected comma-separated numbers above zero such as {example}"
        ) from None
