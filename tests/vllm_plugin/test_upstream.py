"""The patches in `docs/design/upstream/` apply to the installed vLLM, and do there what they say."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.vllm_plugin import upstream

# A process for each copy of vLLM, whose imports take most of the time.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

EXTENSION_POINTS = ("0001", "0002", "0003")
POLICY = ("0004",)


def _patches(numbers: tuple[str, ...]) -> list[Path]:
    return [path for path in sorted(upstream.PATCHES.glob("*.patch")) if path.name.startswith(numbers)]


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """Return what makes a copy of vLLM with patches."""
    pytest.importorskip("vllm")
    if shutil.which("patch") is None:
        pytest.skip("no patch(1)")

    def make(numbers: tuple[str, ...]) -> Path:
        directory = tmp_path_factory.mktemp("vllm")
        upstream.make_tree(directory, _patches(numbers))
        return directory

    return make


@pytest.fixture(scope="module")
def extension_points(patched: Callable[[tuple[str, ...]], Path]) -> Iterator[dict[str, dict[str, Any]]]:
    """Return what the scenes of the first three patches return, by name and arguments."""
    scenes: dict[str, dict[str, Any]] = {
        "stock": {"scene": "queues", "is_stock": True},
        "queues": {"scene": "queues", "is_stock": False},
        "sync": {"scene": "preemptions", "is_async": False, "seed": 1},
        "async": {"scene": "preemptions", "is_async": True, "seed": 1},
        "observers": {"scene": "observers"},
    }
    yield dict(zip(scenes, upstream.play(patched(EXTENSION_POINTS), scenes.values()), strict=True))


@pytest.mark.parametrize("number", [*EXTENSION_POINTS, *POLICY])
def test_each_patch_applies_alone(number: str, patched: Callable[[tuple[str, ...]], Path]) -> None:
    """Each can be sent without the others."""
    directory = patched((number,))
    (patch,) = _patches((number,))
    assert all((directory / path).is_file() for path in upstream.patched_files(patch))


def test_a_subclass_orders_and_admits(extension_points: dict[str, dict[str, Any]]) -> None:
    """Its queue orders; what it holds back is deferred, may be aborted, and runs once it is admitted."""
    expected = {"held": ["d", "e"], "seen": ["c", "b", "a"], "waiting": [0, 2], "then": ["d"], "deferred": 0}
    assert extension_points["queues"] == expected
    assert extension_points["stock"] == {"first": ["a", "b", "c"]}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_running_request_can_be_preempted(extension_points: dict[str, dict[str, Any]], mode: str) -> None:
    """Answers and KV cache are right after each preemption, which only a running request has."""
    result = extension_points[mode]
    assert result["preempted"] > 10
    assert not any(result["refused"])


def test_observers_learn_all_and_a_failing_one_is_left_out(
    extension_points: dict[str, dict[str, Any]],
) -> None:
    """Each event comes once, in order."""
    assert extension_points["observers"] == {
        "seen": [
            *("added a", "added b", "scheduled 24", "executed 2", "preempted b", "preempted a"),
            *(
                "scheduled 26",
                "finished a FINISHED_LENGTH_CAPPED",
                "executed 2",
                "finished b FINISHED_ABORTED",
            ),
        ],
        "failing": ["added a", "added b"],
    }


def test_short_prefills_pass_long_ones(patched: Callable[[tuple[str, ...]], Path]) -> None:
    """Answers and KV cache stay right, and turns wait less than half of what they do in order of arrival."""
    turns = {"scene": "turns_beside_long_prefills", "seed": 20, "seconds": 60}
    scenes: list[dict[str, Any]] = [
        {"scene": "checked_order", "is_async": False},
        {"scene": "checked_order", "is_async": True},
        {**turns, "options": {}},
        {**turns, "options": {"scheduling_policy": "short_prefill"}},
    ]
    *checked, stock, ours = upstream.play(patched(POLICY), scenes)
    assert [result["first"] for result in checked] == [["c", "d", "e", "b", "a"]] * 2
    assert ours["turns"][0] < stock["turns"][0] / 2
