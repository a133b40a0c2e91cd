"""Runs the command line: `python -m autellix` is `autellix`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of the backend, which is part of the same package."""
    # By name: the client works without the backend.
    command_line = __import__("autellix_backend.cli.main", fromlist=("main",))
    code: int = command_line.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
