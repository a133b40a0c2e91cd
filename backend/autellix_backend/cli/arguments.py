"""Argument types that several commands share."""

from __future__ import annotations

import argparse
import math


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
