"""Greenlets of gevent and of other libraries; each test needs its library, and is skipped without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import autellix

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

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


GEVENT_MAPS = """
import sys
from gevent import monkey
monkey.patch_all()
import autellix, gevent, gevent.pool, openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="key", max_retries=0)
run = {
    "map": lambda pool, items: pool.map(ask, items),
    "map_async": lambda pool, items: pool.map_async(ask, items).get(),
    "imap": lambda pool, items: list(pool.imap(ask, items)),
    "imap_unordered": lambda pool, items: list(pool.imap_unordered(ask, items)),
    "apply_async": lambda pool, items: [job.get() for job in [pool.apply_async(ask, (i,)) for i in items]],
}[sys.argv[2]]

def ask(text):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return autellix.current().name

with autellix.program("agent"):
    ask("root")
    # Fewer places than jobs: gevent itself spawns the others, later.
    assert run(gevent.pool.Pool(2), ["a", "b", "c"]) == ["agent"] * 3
    ask("end")
assert run(gevent.pool.Group(), ["d"]) == [None]
"""


@pytest.mark.parametrize("method", ["map", "map_async", "imap", "imap_unordered", "apply_async"])
def test_maps_of_gevents_pools(run_script: Callable[..., str], backend: Recording, method: str) -> None:
    """Another greenlet of gevent's spawns those of the items: its place in the program is none."""
    pytest.importorskip("gevent")
    run_script(GEVENT_MAPS, backend.url, method, AUTELLIX_BASE_URL=backend.url)
    dag = backend.dag()
    dag.pop("d")
    assert dag == {
        "root": (),
        "a": ("root",),
        "b": ("root",),
        "c": ("root",),
        "end": ("a", "b", "c"),
    }


@pytest.fixture
def greenlet(sdk: None) -> Any:
    return pytest.importorskip("greenlet")


def name_here() -> str | None:
    return autellix.current().name


def test_unlinked_greenlet_is_in_no_program_until_it_opens_one(greenlet: Any) -> None:
    """As those of eventlet: one that waits in a program must not lend it to the code that goes on."""

    def work() -> str | None:
        before = name_here()
        with autellix.program("inner"):
            greenlet.getcurrent().parent.switch((before, name_here()))
            return name_here()

    with autellix.program("outer"):
        suspended = greenlet.greenlet(work)
        assert suspended.switch() == (None, "inner")
        assert name_here() == "outer"
        assert suspended.switch() == "inner"
        assert name_here() == "outer"
    assert name_here() is None


async def test_greenlet_of_a_task_is_a_part_of_the_task(greenlet: Any) -> None:
    """As SQLAlchemy runs synchronous code in a coroutine."""
    with autellix.program("a"):
        assert greenlet.greenlet(name_here).switch() == "a"
    assert greenlet.greenlet(name_here).switch() is None
