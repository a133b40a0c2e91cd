"""Scopes that the garbage collector closes, on top of code that opens and closes others."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE_S

import autellix
from autellix import _open_scopes
from autellix._open_scopes import OpenScopes, add_open, find_open, remove
from autellix._programs import thread as threads
from autellix._programs.running import running_thread

if TYPE_CHECKING:
    from collections.abc import Generator

SCRIPT = Path(__file__).with_name("finalizers.py")


def test_collections_everywhere_hang_nothing_and_leave_nothing() -> None:
    """In a process of its own, which ends itself if it hangs."""
    command = [sys.executable, str(SCRIPT), "--seconds", "0.5", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"]
    assert found["left"] == {"programs": 0, "sessions": 0, "generators": 0}


class Thing:
    def __init__(self) -> None:
        self.scopes = OpenScopes()


def test_a_thing_is_open_until_its_last_scope_is_left() -> None:
    scopes = OpenScopes()
    assert scopes.open()
    assert not scopes.leave()
    assert scopes
    assert scopes.leave()
    assert not scopes
    assert not scopes.open()
    assert not scopes


def test_what_is_left_but_not_removed_yet_is_replaced() -> None:
    """A finalizer opens a scope between two steps of the code that leaves the last one with that id."""
    left, fresh = Thing(), Thing()
    table = {"a": left}
    assert left.scopes.leave()
    assert find_open(table, "a") is None
    assert add_open(table, "a", fresh) is fresh
    remove(table, "a", left)
    assert table == {"a": fresh}


def test_the_first_to_come_is_shared() -> None:
    first, second = Thing(), Thing()
    table: dict[str, Thing] = {}
    assert add_open(table, "a", first) is first
    assert add_open(table, "a", second) is first
    assert not first.scopes.leave()
    assert first.scopes.leave()


def agent(name: str) -> Generator[None]:
    with autellix.program(name), autellix.session(id=name), autellix.thread(name):
        yield


@pytest.mark.parametrize("step", ["find_open", "add_open", "remove"])
def test_a_collection_in_the_middle_of_a_scopes_steps(
    sdk: None, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The collector closes an abandoned generator while a program and a session are opened and left."""
    original = getattr(_open_scopes, step)
    collected = 0

    def collect(*args: Any) -> Any:
        nonlocal collected
        collected += gc.collect() > 0
        return original(*args)

    for module in (_open_scopes, autellix._programs.registry, autellix._sessions.keeper):
        monkeypatch.setattr(module, step, collect)
    for program_id in (None, "a"):
        generator = agent("abandoned")
        next(generator)
        cycle: list[object] = [generator]
        cycle.append(cycle)
        del generator, cycle
        with autellix.program("next", id=program_id), autellix.session(id=program_id):
            assert autellix.current().name == "next"
    assert collected
    assert autellix.current().is_implicit


def test_a_call_in_the_middle_of_a_join_sees_a_part(sdk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer makes a call while the branches of the same thread are being joined, each of them once."""
    with autellix.program("a"):
        here = running_thread()
        branches = {"left": here.branch(), "right": here.branch()}
        for name, branch in branches.items():
            branch.record_call(name)
            branch.is_closed = True
        original = threads._take_first
        parents: list[Any] = []

        def take_first(children: Any) -> Any:
            child = original(children)
            if child is not None and not parents:
                parents.append(None)
                parents[0] = here.record_call("finalizer")
            return child

        monkeypatch.setattr(threads, "_take_first", take_first)
        assert here.record_call("next") == ("finalizer", "left")
        assert parents == [("right",)]
