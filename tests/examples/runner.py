"""Runs the examples as users do, in a process of their own, against a recording backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autellix.testing import Answer, RecordedCall, RecordingBackend

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    name: str, *, answer: Answer = lambda _body: "hello", code: str | None = None, **environ: str
) -> list[RecordedCall]:
    """Run an example, or code that imports it, and return the calls that it made."""
    with RecordingBackend(answer=answer) as backend:
        run(name, code, backend.url, environ)
        return list(backend.recorded)


def run(name: str, code: str | None, url: str, environ: dict[str, str]) -> None:
    """Run an example, or code that imports it, with a backend at this address."""
    command = [sys.executable, *(("-c", code) if code else (str(EXAMPLES / f"{name}.py"),))]
    paths = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {"PYTHONPATH": os.pathsep.join(paths), "AUTELLIX_BASE_URL": url, **environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environ})
    assert done.returncode == 0, done.stderr


def by_program(calls: list[RecordedCall]) -> list[list[RecordedCall]]:
    """Return the calls of each program, in the order of arrival."""
    found: dict[str | None, list[RecordedCall]] = {}
    for call in calls:
        found.setdefault(call.program_id, []).append(call)
    return list(found.values())


def parents(call: RecordedCall) -> set[str]:
    """Return the ids of the calls that a call depends on."""
    assert call.parents is not None
    return set(call.parents)


def ids(calls: list[RecordedCall]) -> set[str]:
    """Return the ids of calls."""
    return {str(call.call_id) for call in calls}
