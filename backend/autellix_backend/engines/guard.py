"""Runs a server as its only child so that none of its processes outlives us; started as a script.

    python guard.py GRACE_S COMMAND...

The guard leads its own process group, and its standard input is a pipe without a writer. When the pipe
closes (the owner ends the server, or died), the server gets SIGTERM and GRACE_S seconds to finish; then the
whole group, guard included, is killed. When the server ends by itself the guard ends with its exit code, and
the owner kills the group. It uses the standard library only, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

STDIN = 0
CHECK_PERIOD_S = 0.1


def start(
    command: Sequence[str],
    grace_s: float,
    log_path: os.PathLike[str],
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server under a guard; to end it, close the returned process's standard input."""
    # Without pathlib, so that the guard starts at once.
    with open(log_path, "wb") as log:  # noqa: PTH123
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(grace_s), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )


class _TerminationError(Exception):
    """The guard got SIGTERM."""


def main(arguments: list[str]) -> int:
    """Run the command until it ends or must end; return its exit code as a shell does."""
    grace_s, command = float(arguments[0]), arguments[1:]
    owner = os.getppid()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, _terminate)
    with contextlib.suppress(_TerminationError):
        # A fork of the owner may hold the pipe open after its death, so watch the parent too.
        while server.poll() is None and os.getppid() == owner and not _is_pipe_closed():
            pass
    if server.poll() is None:
        _end(server, grace_s)
    code = server.returncode
    return code if code >= 0 else 128 - code


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminationError


def _is_pipe_closed() -> bool:
    """Wait for the pipe's end, for a period; return whether it came."""
    readable, _, _ = select.select([STDIN], [], [], CHECK_PERIOD_S)
    return bool(readable) and not os.read(STDIN, 64)


def _end(server: subprocess.Popen[bytes], grace_s: float) -> None:
    server.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(grace_s)
    # Includes what the server left behind, and the guard itself.
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
