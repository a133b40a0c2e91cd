"""Greenlets of gevent, of eventlet, and plain ones; each test needs its library, and is skipped without."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import autellix

GEVENT = """
import sys
import autellix
if "late" in sys.argv:
    from gevent import monkey
    monkey.patch_all()
import contextlib, threading, gevent, gevent.pool
from concurrent.futures import ThreadPoolExecutor

def name_here():
    return autellix.current().name

def work(name):
    with autellix.program(name):
        for _ in range(5):
            gevent.sleep(0)
            assert name_here() == name, (name, name_here())
    assert name_here() is None

gevent.joinall([gevent.spawn(work, name) for name in "ab"], raise_error=True)

seen = {}
def note(name):
    seen[name] = name_here()

with contextlib.ExitStack() as programs:
    spawned = []
    for name in "ab":
        programs.enter_context(autellix.program(name))
        spawned += [gevent.spawn(note, name), gevent.spawn_later(0.001, note, name + " later")]
    gevent.joinall(spawned, raise_error=True)
    # Made past the functions that are patched: in no program, and in no other one.
    gevent.Greenlet.spawn(note, "direct").join()
    gevent.pool.Pool(2).spawn(note, "pool").join()
    thread = threading.Thread(target=note, args=("thread",))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(note, "job").result()
gevent.spawn(note, "none").join()
assert seen == {
    "a": "a", "b": "b", "a later": "a", "b later": "b", "direct": None, "pool": "b", "thread": "b",
    "job": "b", "none": None,
}, seen
"""


@pytest.mark.parametrize("when", ["late", "never"])
def test_greenlets_of_gevent(run_script: Callable[..., str], when: str) -> None:
    """Also where gevent replaces threads after `import autellix`."""
    pytest.importorskip("gevent")
    run_script(GEVENT, when)


EVENTLET = """
import sys, warnings
warnings.simplefilter("ignore")
import autellix
import eventlet
if "late" in sys.argv:
    eventlet.monkey_patch()

def name_here():
    return autellix.current().name

def work(name):
    with autellix.program(name):
        for _ in range(5):
            eventlet.sleep(0)
            assert name_here() == name, (name, name_here())
    assert name_here() is None

for greenlet in [eventlet.spawn(work, name) for name in "ab"]:
    greenlet.wait()
with autellix.program("a"):
    assert eventlet.spawn(name_here).wait() == "a"
    assert eventlet.GreenPool(2).spawn(name_here).wait() == "a"
"""


@pytest.mark.parametrize("when", ["late", "never"])
def test_greenlets_of_eventlet(run_script: Callable[..., str], when: str) -> None:
    pytest.importorskip("greenlet")
    if importlib.util.find_spec("eventlet") is None:
        pytest.skip("eventlet is not installed")
    run_script(EVENTLET, when, EVENTLET_NO_GREENDNS="yes", PYTHONWARNINGS="ignore")


@pytest.fixture
def greenlet(sdk: None) -> Any:
    return pytest.importorskip("greenlet")


def name_here() -> str | None:
    return autellix.current().name


def test_plain_greenlet_is_a_part_of_the_code_that_drives_it(greenlet: Any) -> None:
    with autellix.program("a"):
        assert greenlet.greenlet(name_here).switch() == "a"
    assert greenlet.greenlet(name_here).switch() is None


def test_plain_greenlet_inside_a_generators_scope(greenlet: Any) -> None:
    def generate() -> Iterator[str | None]:
        with autellix.program("a"):
            yield greenlet.greenlet(name_here).switch()

    assert list(generate()) == ["a"]
    assert name_here() is None


def test_scope_inside_a_plain_greenlet_waits_with_it(greenlet: Any) -> None:
    def work() -> str | None:
        with autellix.program("inner"):
            greenlet.getcurrent().parent.switch(name_here())
            return name_here()

    with autellix.program("outer"):
        suspended = greenlet.greenlet(work)
        assert suspended.switch() == "inner"
        assert name_here() == "outer"
        assert suspended.switch() == "inner"
        assert name_here() == "outer"
