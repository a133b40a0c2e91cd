"""Runs the command line, which comes with the backend: `python -m autellix` is `autellix`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of the backend; without it, say how to install it and return 2."""
    try:
        # By name: the client works without the backend.
        command_line = __import__("autellix_backend.cli.main", fromlist=("main",))
    except ModuleNotFoundError as error:
        if error.name != "autellix_backend":
            raise
        sys.stderr.write(
            "autellix: the command line comes with the server: `pip install 'autellix-backend[gateway] @ "
            "git+https://github.com/autellix/autellix#subdirectory=backend' git+https://github.com/autellix/autellix`\n"
        )
        return 2
    code: int = command_line.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
