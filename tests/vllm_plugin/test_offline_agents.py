"""vLLM's own Python API: the programs of a process reach the scheduler of its engine without a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# The first test pays for vLLM's imports, on a machine that may be busy.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def check(seen: list[dict[str, Any]], class_name: str) -> None:
    """Assert that three agents planned, drafted twice at once, and chose; then came two further calls."""
    *calls, last, outside = seen
    programs: dict[str, list[dict[str, Any]]] = {}
    for call in calls:
        programs.setdefault(call["program"], []).append(call)
    assert {call["class"] for call in calls} == {class_name}
    assert [len(of_program) for of_program in programs.values()] == [4, 4, 4]
    for plan, *drafts, choice in programs.values():
        assert plan["parents"] == []
        assert [draft["parents"] for draft in drafts] == [[plan["call"]]] * 2
        assert sorted(choice["parents"]) == sorted(draft["call"] for draft in drafts)
        # The engine knows how long the paths of these calls are.
        assert plan["inherited_s"] == 0.0
        assert drafts[0]["inherited_s"] == drafts[1]["inherited_s"] > 0.0
        assert choice["inherited_s"] > drafts[0]["inherited_s"]
    # The ends of all three have come with it.
    assert last["programs"] == [last["program"]]
    assert last["class"] == "last"
    # The engine has made it a program: its request names none.
    assert outside["program"] not in {call["program"] for call in seen[:-1]}
    assert (outside["class"], outside["parents"]) == ("", None)


def test_agents_in_threads(engine_worker: Any, demo_model: Path, tmp_path: Path) -> None:
    """With an engine core in this process; the prompts of a batch are siblings, and of one thread."""
    done = engine_worker.run({"agents": str(demo_model), "seen": str(tmp_path / "seen"), "is_async": False})
    assert "error" not in done, done["error"]
    assert done["missing"] == []
    check([call for call in done["seen"] if call["class"] != "in step"], "agent")
    assert len(done["answers"]) == 3
    one, two, *then = [call for call in done["seen"] if call["class"] == "in step"]
    assert one["parents"] == two["parents"] == []
    assert [(call["program"], call["parents"]) for call in then] == [
        (call["program"], [call["call"]]) for call in (one, two)
    ]


def test_agents_in_tasks(engine_worker: Any, demo_model: Path, tmp_path: Path) -> None:
    """The example, with the engine core in a process of its own; each draft is a thread."""
    done = engine_worker.run({"agents": str(demo_model), "seen": str(tmp_path / "seen"), "is_async": True})
    assert "error" not in done, done["error"]
    assert done["missing"] == []
    check(done["seen"], "writer")
    assert len(done["answers"]) == 3
    for program in {call["program"] for call in done["seen"][:-2]}:
        threads = [call["thread"] for call in done["seen"] if call["program"] == program]
        assert len(set(threads)) == 3
