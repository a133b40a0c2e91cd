"""Task trees and process pools of other libraries; each test needs its library, and is skipped without."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.sdk.propagation import FORK_JOIN, run_file

import autellix

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.sdk.conftest import Recording


def name_here() -> str | None:
    return autellix.current().name


@pytest.fixture
def trio(sdk: None) -> Any:
    pytest.importorskip("trio.testing")
    return pytest.importorskip("trio")


def test_each_trio_task_keeps_its_program(trio: Any) -> None:
    """Two tasks of one thread take turns inside their programs."""
    seen: list[tuple[str, str | None]] = []

    async def work(name: str) -> None:
        with autellix.program(name):
            for _ in range(5):
                await trio.lowlevel.checkpoint()
                seen.append((name, name_here()))
        assert name_here() is None

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, "a")
            nursery.start_soon(work, "b")

    trio.run(main)
    assert len(seen) == 10
    assert all(name == found for name, found in seen)


def test_trio_tasks_inherit_where_they_are_started(trio: Any) -> None:
    """Not from where their parent is when they run first."""
    seen: dict[str, str | None] = {}

    async def note(name: str) -> None:
        seen[name] = name_here()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "none")
            with autellix.program("a"):
                nursery.start_soon(note, "a")
                with autellix.program("b"):
                    nursery.start_soon(note, "b")
                    with autellix.program("later"):
                        await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert seen == {"a": "a", "b": "b", "none": None}


def test_trio_runs_in_the_program_around_it(trio: Any) -> None:
    async def main() -> str | None:
        return name_here()

    with autellix.program("outer"):
        assert trio.run(main) == "outer"


def test_threads_that_trio_keeps_remember_no_job(trio: Any) -> None:
    seen: dict[str, str | None] = {}
    threads = set()

    def job(name: str) -> None:
        threads.add(threading.get_ident())
        seen[name] = name_here()

    async def main() -> None:
        for name in ("a", "b"):
            with autellix.program(name):
                await trio.to_thread.run_sync(job, name)
        await trio.to_thread.run_sync(job, "none")

    trio.run(main)
    assert len(threads) == 1
    assert seen == {"a": "a", "b": "b", "none": None}


def test_dag_of_a_trio_nursery(trio: Any, backend: Recording) -> None:
    openai = importlib.import_module("openai")
    autellix.configure(backend.url)
    client = openai.OpenAI(base_url=backend.url, api_key="key", max_retries=0)

    def ask(name: str) -> None:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": name}])

    async def branch(name: str) -> None:
        await trio.lowlevel.checkpoint()
        ask(name)

    async def main() -> None:
        with autellix.program("agent"):
            ask("root")
            async with trio.open_nursery() as nursery:
                for name in ("a", "b"):
                    nursery.start_soon(branch, name)
            ask("end")

    trio.run(main)
    # One thread runs both branches to their end in turn, and neither comes before the other.
    assert backend.dag() == FORK_JOIN


JOBLIB = """
import sys
import autellix
from joblib import Parallel, delayed

def job(number):
    import autellix
    return autellix.current().name

if __name__ == "__main__":
    for name in "AB":
        with autellix.program(name):
            found = Parallel(2)(delayed(job)(number) for number in range(4))
        assert set(found) == {name}, (name, found)
    # Outside of both it is the process's own program, which has the script's name, or none.
    assert not {"A", "B"} & set(Parallel(2)(delayed(job)(number) for number in range(4)))
"""


def test_processes_that_joblib_keeps_remember_no_job(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    run_file(tmp_path, JOBLIB)


async def test_debug_loop_refuses_coroutine_functions_as_without_us(sdk: None) -> None:
    async def mistake() -> None:
        pass

    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    for call in (loop.call_later, loop.call_at):
        with pytest.raises(TypeError, match="coroutines cannot be used"):
            call(0, mistake)


def test_slow_callbacks_are_named_as_without_us(sdk: None) -> None:
    """An event loop in debug mode names a slow callback by its function, and the line where that is."""

    def slow() -> None:
        pass

    with autellix.program("a"):
        loop = asyncio.new_event_loop()
        try:
            handle = loop.call_later(60, slow)
            shown = asyncio.format_helpers._format_callback_source(handle._callback, ())  # type: ignore[attr-defined]
            handle.cancel()
        finally:
            loop.close()
    assert "test_slow_callbacks_are_named_as_without_us.<locals>.slow()" in shown
    assert "test_other_runtimes.py" in shown


SUB_INTERPRETER = """
import sys

CODE = '''
import sys
sys.path[:] = {path!r}
import autellix
from autellix._sessions.control_thread import ControlThread

autellix.configure("http://127.0.0.1:9/v1")
with autellix.program("a"):
    first = autellix.headers("http://127.0.0.1:9/v1/chat/completions")
assert first["X-Autellix-Program-Name"] == "a", first
ControlThread(lambda: None, int).ensure_started()
'''.format(path=sys.path)

if sys.version_info < (3, 13):
    import _xxsubinterpreters as interpreters

    interpreter = interpreters.create()
    interpreters.run_string(interpreter, CODE)
else:
    import _interpreters as interpreters

    interpreter = interpreters.create()
    failure = interpreters.exec(interpreter, CODE)
    assert failure is None, failure
interpreters.destroy(interpreter)
"""


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="the end of one crashes, also without the client")
def test_calls_of_a_sub_interpreter_are_annotated(run_script: Callable[..., str]) -> None:
    """It may start no daemon thread, so its sessions are not kept, but nothing fails."""
    run_script(SUB_INTERPRETER)
