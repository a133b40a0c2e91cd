"""Lines of commands to people, beside their output."""

from __future__ import annotations

import sys


def note(text: str) -> None:
    """Print a line about the gateway to standard error."""
    print(f"autellix: {text}", file=sys.stderr, flush=True)
