"""The Python of README and guides runs as it is typed, against a recording backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autellix.testing import RecordedCall, RecordingBackend

ROOT = Path(__file__).parents[2]
BASE_URL = "http://127.0.0.1:8000/v1"


def run_page(path: str, backend: RecordingBackend) -> dict[str, list[RecordedCall]]:
    """Run all Python of a page in one process; return the calls by program name."""
    page = (ROOT / path).read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert BASE_URL in script
    done = subprocess.run(
        [sys.executable, "-c", script.replace(BASE_URL, backend.url)],
        input="\n",  # the quickstart waits for Enter
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "AUTELLIX_BASE_URL": backend.url},
    )
    assert done.returncode == 0, done.stderr
    calls: dict[str, list[RecordedCall]] = {}
    for call in backend.recorded:
        calls.setdefault(call.program_name or "", []).append(call)
    return calls


def test_every_page_with_python_is_run() -> None:
    """Each page is run below, or its Python is for another process or library: Ray, OpenHands, a policy."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text("utf-8")}
    run = set(re.findall(r'run_page\("(.+?)"', Path(__file__).read_text("utf-8")))
    assert found == run | {"docs/guides/cluster.md", "docs/guides/coding-agents.md", "docs/scheduling.md"}


def test_readme() -> None:
    """It asks the server which model it has, so that it runs with the demo model and with any other."""
    with RecordingBackend() as backend:
        calls = run_page("README.md", backend)
    assert [call.content for call in calls["research"]] == [
        "Name the capital of France.",
        "And the capital of Italy?",
    ]
    assert {call.body["model"] for call in calls["research"]} == {"recording"}


def test_quickstart() -> None:
    with RecordingBackend() as backend:
        calls = run_page("docs/quickstart.md", backend)
    plan, answer = calls["research"]
    assert answer.parents == (plan.call_id,)


def test_client_guide() -> None:
    with RecordingBackend() as backend:
        calls = run_page("docs/guides/sdk.md", backend)
    assert [call.content for call in calls["react"]] == ["Hello"]
    plan, write = calls["research"]
    assert (write.parents, write.session_id) == ((plan.call_id,), "conversation-7")
    assert plan.thread_id != write.thread_id


def test_frameworks_guide() -> None:
    for module in ("langchain_openai", "langgraph"):
        pytest.importorskip(module)
    with RecordingBackend() as backend:
        calls = run_page("docs/guides/frameworks.md", backend)
    assert {name: len(of_program) for name, of_program in calls.items()} == {"chat": 1}
