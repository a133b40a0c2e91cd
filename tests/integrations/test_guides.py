"""The Python of the guides runs as it is typed, against a recording backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autellix.testing import RecordedCall, RecordingBackend

GUIDES = Path(__file__).parents[2] / "docs/guides"
BASE_URL = "http://127.0.0.1:8000/v1"


def run_guide(name: str, backend: RecordingBackend) -> dict[str, list[RecordedCall]]:
    """Run all Python of a page in one process; return the calls by program name."""
    page = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert BASE_URL in script
    done = subprocess.run(
        [sys.executable, "-c", script.replace(BASE_URL, backend.url)],
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


def test_client_guide() -> None:
    pytest.importorskip("fastapi")
    with RecordingBackend() as backend:
        calls = run_guide("sdk", backend)
    assert [call.content for call in calls["react"]] == ["Hello"]
    plan, write = calls["research"]
    assert (write.parents, write.session_id) == ((plan.call_id,), "conversation-7")
    assert plan.thread_id != write.thread_id


def test_langchain_guide() -> None:
    pytest.importorskip("langchain_openai")
    pytest.importorskip("langgraph")
    with RecordingBackend() as backend:
        calls = run_guide("langchain", backend)
    assert {name: len(of_program) for name, of_program in calls.items()} == {"chat": 2}
    assert len({call.program_id for call in calls["chat"]}) == 2


def test_autogen_guide() -> None:
    pytest.importorskip("autogen_agentchat")
    with RecordingBackend() as backend:
        calls = run_guide("autogen", backend)
    assert {name: len(of_program) for name, of_program in calls.items()} == {"essay": 4}
    writer, *middle, editor = calls["essay"]
    assert [call.parents for call in middle] == [(writer.call_id,)] * 2
    assert sorted(editor.parents or ()) == sorted(str(call.call_id) for call in middle)
