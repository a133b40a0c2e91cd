"""Runs the examples as users do, in a process of their own, against a recording backend or a gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.serving import serving_thread
from tests.waiting import wait_until

from autellix.testing import Answer, RecordedCall, RecordingBackend
from autellix_backend.gateway.app import create_app
from autellix_backend.gateway.http.history import HISTORY_PATH
from autellix_backend.settings import Settings
from autellix_lab.fakes.engine import FakeEngine
from autellix_wire.paths import PROGRAMS_PATH

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    name: str, *, answer: Answer = lambda _body: "hello", code: str | None = None, **environ: str
) -> list[RecordedCall]:
    """Run an example, or code that imports it, and return the calls that it made."""
    with RecordingBackend(answer=answer) as backend:
        _run(name, code, backend.url, environ)
        return list(backend.recorded)


def programs_at_a_gateway(name: str, *, code: str | None = None, **environ: str) -> list[tuple[str, int]]:
    """Run an example before a gateway, and return the programs that have ended there: name and calls."""
    engine = FakeEngine()
    with serving_thread(create_app(Settings(), engine), engine) as url:
        _run(name, code, f"{url}/v1", environ)
        # Its end is reported in the background.
        wait_until(lambda: not _get(f"{url}{PROGRAMS_PATH}")["programs"])
        ended = _get(f"{url}{HISTORY_PATH}?limit=1000")["programs"]
    return sorted((program["name"], program["finished_calls"]) for program in ended)


def _run(name: str, code: str | None, url: str, environ: dict[str, str]) -> None:
    command = [sys.executable, *(("-c", code) if code else (str(EXAMPLES / f"{name}.py"),))]
    paths = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {"PYTHONPATH": os.pathsep.join(paths), "AUTELLIX_BASE_URL": url, **environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environ})
    assert done.returncode == 0, done.stderr


def _get(url: str) -> Any:
    with urllib.request.urlopen(url) as response:
        return json.load(response)


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
