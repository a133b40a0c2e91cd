"""Whose call it is, case by case: docs/guides/sdk.md has the limits.

Every case makes real calls, most with an OpenAI client, and looks at what the recording backend has recorded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import math
import queue
import sys
import textwrap
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from tests.sdk.propagation import FORK_JOIN, ONE_BRANCH, ROWS, Agent, row, run_file, run_on, together
from tests.waiting import PATIENCE_S

import autellix
from autellix._propagation import Suppressed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator


def in_program(agent: Agent, branch: Callable[[Callable[[], str]], object]) -> None:
    """Call, let a branch call, and call again once it has ended."""
    with autellix.program("agent"):
        agent.ask("root")
        branch(lambda: agent.ask("branch"))
        agent.ask("end")


async def in_program_async(
    agent: Agent, branch: Callable[[Callable[[], Coroutine[Any, Any, str]]], Awaitable[object]]
) -> None:
    async with autellix.program("agent"):
        await agent.aask("root")
        await branch(lambda: agent.aask("branch"))
        await agent.aask("end")


# --- threads ---


@row("`threading.Thread`", "`Thread.start` links it; the thread finds its program at its first call")
def test_thread(agent: Agent) -> None:
    def branch(call: Callable[[], str]) -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    in_program(agent, branch)
    agent.expect(ONE_BRANCH)
    assert agent.thread_of("root") == agent.thread_of("end") != agent.thread_of("branch")


@row("a subclass of `Thread` with its own `run`", "as above, by its `start`")
def test_thread_subclass(agent: Agent) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            agent.ask("branch")

    def branch(call: object) -> None:
        worker = Worker()
        worker.start()
        worker.join()

    in_program(agent, branch)
    agent.expect(ONE_BRANCH)


@row("two threads in parallel, then a join", "both are parents of the next call")
def test_fork_join_of_threads(agent: Agent) -> None:
    def branches(_: object) -> None:
        branch = together(agent.ask)
        threads = [threading.Thread(target=branch, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    in_program(agent, branches)
    agent.expect(FORK_JOIN)
    assert agent.thread_of("a") != agent.thread_of("b")


@row("threads started by threads", "each link leads to its starter")
def test_nested_threads(agent: Agent) -> None:
    def branch(call: Callable[[], str]) -> None:
        def outer() -> None:
            inner = threading.Thread(target=call)
            inner.start()
            inner.join()

        thread = threading.Thread(target=outer)
        thread.start()
        thread.join()

    in_program(agent, branch)
    agent.expect(ONE_BRANCH)


@row("`threading.Timer`", "it is a thread")
def test_timer(agent: Agent) -> None:
    def branch(call: Callable[[], str]) -> None:
        timer = threading.Timer(0.001, call)
        timer.start()
        timer.join()

    in_program(agent, branch)
    agent.expect(ONE_BRANCH)


@row(
    "a thread that outlives its program",
    "it falls back to the process's program: it may serve others by then",
)
def test_thread_outlives_its_scope(agent: Agent) -> None:
    gate = threading.Event()
    with autellix.program("agent"):
        agent.ask("root")
        thread = threading.Thread(target=lambda: gate.wait() and agent.ask("late"))
        thread.start()
    with autellix.program("other"):
        gate.set()
        thread.join()
        agent.ask("other's")
    assert agent.programs() == {"root": "agent", "late": None, "other's": "other"}


@row(
    "a thread started before `import autellix`",
    "its calls belong to the process's program, without parents; open a program inside, or import earlier",
    "limit",
)
def test_thread_from_before_the_import(agent: Agent) -> None:
    gate = threading.Event()
    autellix.uninstrument()
    thread = threading.Thread(target=lambda: gate.wait() and agent.ask("branch"))
    thread.start()
    autellix.instrument()
    agent.ask("root")
    gate.set()
    thread.join()
    assert agent.backend.dag()["branch"] is None
    assert agent.program_of("branch") is None


# --- pools ---


@row("`ThreadPoolExecutor.submit`", "the job carries its program to any worker")
def test_submit(agent: Agent) -> None:
    with ThreadPoolExecutor(2) as pool:
        in_program(agent, lambda call: pool.submit(call).result())
    agent.expect(ONE_BRANCH)


@row("`ThreadPoolExecutor.map`", "it submits")
def test_map(agent: Agent) -> None:
    with ThreadPoolExecutor(2) as pool:
        in_program(agent, lambda _: list(pool.map(together(agent.ask), "ab")))
    agent.expect(FORK_JOIN)


@row("a pool shared by programs", "a worker keeps nothing of its last job, nor of its starter")
def test_shared_pool(agent: Agent) -> None:
    with ThreadPoolExecutor(1) as pool:
        for name in ("a", "b"):
            with autellix.program(name):
                pool.submit(agent.ask, name).result()
        pool.submit(agent.ask, "none").result()
    assert agent.programs() == {"a": "a", "b": "b", "none": None}


@row("a subclass of `ThreadPoolExecutor` that wraps jobs", "its `submit` calls the patched one")
def test_pool_subclass(agent: Agent) -> None:
    class Wrapping(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return super().submit(functools.partial(fn, *args, **kwargs))

    with Wrapping(1) as pool:
        in_program(agent, lambda call: pool.submit(call).result())
    agent.expect(ONE_BRANCH)


@row(
    "`InterpreterPoolExecutor`",
    "its jobs run in other interpreters, in no program",
    "limit",
)
@pytest.mark.skipif(sys.version_info < (3, 14), reason="from Python 3.14")
def test_pool_of_interpreters(agent: Agent) -> None:
    """The jobs are pickled, so nothing of ours may be in them."""
    pool_class: Any = getattr(concurrent.futures, "InterpreterPoolExecutor")  # noqa: B009 - from Python 3.14
    with autellix.program("agent"), pool_class(1) as pool:
        assert pool.submit(math.factorial, 5).result() == 120
        assert list(pool.map(math.factorial, (2, 3))) == [2, 6]


@row("`Future.add_done_callback`", "the callback is a branch of the code that adds it")
def test_done_callback_of_a_future(agent: Agent) -> None:
    def branch(call: Callable[[], str]) -> None:
        done = threading.Event()
        gate = threading.Event()
        future = pool.submit(gate.wait)

        def finish(_: object) -> None:
            call()
            done.set()

        future.add_done_callback(finish)
        gate.set()
        assert done.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        in_program(agent, branch)
    assert agent.backend.dag()["branch"] == ("root",)
    assert set(agent.programs().values()) == {"agent"}


@row("`multiprocessing.pool.ThreadPool`", "`apply_async`, `map`, `starmap`, `imap`: each item is a branch")
def test_thread_pool_of_multiprocessing(agent: Agent) -> None:
    with ThreadPool(2) as pool, autellix.program("agent"):
        agent.ask("root")
        pool.map(together(agent.ask), "ab")
        agent.ask("end")
        pool.apply_async(agent.ask, ("applied",)).get()
        list(pool.imap_unordered(agent.ask, ["imapped"]))
        pool.starmap(agent.ask, [("starred",)])
    agent.expect({**FORK_JOIN, "applied": ("end",), "imapped": ("applied",), "starred": ("imapped",)})


@row(
    "your own work queue and worker threads",
    "the client cannot see who enqueues a job; enqueue `autellix.propagate(job)`",
    "limit",
)
def test_queue_of_work(agent: Agent) -> None:
    jobs: queue.Queue[Callable[[], object] | None] = queue.Queue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            job()

    with autellix.program("starter"):
        worker = threading.Thread(target=work)
        worker.start()
    with autellix.program("agent"):
        agent.ask("root")
        jobs.put(lambda: agent.ask("unlinked"))
        jobs.put(autellix.propagate(lambda: agent.ask("linked")))
        jobs.put(None)
        worker.join()
        agent.ask("end")
    assert agent.programs() == {"root": "agent", "unlinked": None, "linked": "agent", "end": "agent"}
    assert agent.backend.dag()["linked"] == ("root",)
    assert agent.backend.dag()["end"] == ("linked",)


@row("`map` over a generator that calls", "each job follows the call that made its item")
@pytest.mark.parametrize("kind", ["executor", "imap", "imap_unordered"])
def test_map_over_a_generator_that_calls(agent: Agent, kind: str) -> None:
    items = (agent.ask(f"made {number}") for number in range(3))
    with autellix.program("agent"):
        if kind == "executor":
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda item: agent.ask(item.replace("made", "used")), items))
        else:
            with ThreadPool(2) as threads:
                list(getattr(threads, kind)(lambda item: agent.ask(item.replace("made", "used")), items))
        agent.ask("end")
    agent.expect(
        {
            "made 0": (),
            "used 0": ("made 0",),
            "made 1": ("made 0",),
            "used 1": ("made 1",),
            "made 2": ("made 1",),
            "used 2": ("made 2",),
            "end": ("used 0", "used 1", "used 2"),
        }
    )


def test_map_of_a_list_made_first(agent: Agent) -> None:
    """`ThreadPool.map` makes all items before the first branch."""
    items = (agent.ask(f"made {number}") for number in range(2))
    with autellix.program("agent"), ThreadPool(1) as pool:
        pool.map(lambda item: agent.ask(item.replace("made", "used")), items)
    dag = {"made 0": (), "made 1": ("made 0",), "used 0": ("made 1",), "used 1": ("made 1",)}
    agent.expect(dag)


def test_error_of_an_item_reaches_the_caller(agent: Agent) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError("no second item")

    with autellix.program("agent"), ThreadPool(1) as pool, pytest.raises(LookupError, match="no second"):
        list(pool.imap(abs, items()))


# --- processes ---

PROCESSES = """
    import multiprocessing, os, sys, time
    from concurrent.futures import ProcessPoolExecutor
    import autellix

    # The plain client where it makes no difference: each process imports it again, four times as fast.
    if sys.argv[3] == "openai":
        import openai
    else:
        import httpx
        autellix.instrument(raw_http=True)

    def ask(name):
        url, messages = sys.argv[1], [{"role": "user", "content": name}]
        if sys.argv[3] == "openai":
            with openai.OpenAI(base_url=url, api_key="key", max_retries=0) as client:
                client.chat.completions.create(model="m", messages=messages)
        else:
            httpx.post(url + "/chat/completions", json={"model": "m", "messages": messages})
        return name

    def fail(name):
        ask(name)
        raise LookupError(name)

    def serve(jobs, answers):
        while (job := jobs.get()) is not None:
            answers.put(ask(job))

    def start(context, jobs, answers):
        process = context.Process(target=serve, args=(jobs, answers))
        process.start()
        jobs.put("first")
        answers.get()
        return process

    def late(path):
        while not os.path.exists(path):
            time.sleep(0.01)
        return ask("late")

    def reopen(program_id):
        with autellix.program("agent", id=program_id):
            ask("reopened")

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[2])
        with autellix.program("agent"):
            ask("root")
            BRANCH
            ask("end")
        AFTER
"""


def run_processes(
    agent: Agent, folder: Path, method: str, branch: str, after: str = "", client: str = "httpx"
) -> None:
    # Two processes must not share a connection, and a spawned one finds its backend by the environment.
    url = agent.backend.url
    script = PROCESSES.replace("BRANCH", branch).replace("AFTER", textwrap.indent(after, " " * 4).strip())
    run_file(folder, script, url, method, client, AUTELLIX_BASE_URL=url)


@row(
    "`multiprocessing.Process`: spawn, fork, forkserver",
    "the process object carries the program, and its calls have parents, but its end is not seen: "
    "the parent's next call lists only the known parents, with the flag `truncated`",
    "works, with a limit",
)
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_process(agent: Agent, tmp_path: Path, method: str) -> None:
    branch = "process = context.Process(target=ask, args=('branch',)); process.start(); process.join()"
    # A forked one needs no import of its own.
    run_processes(agent, tmp_path, method, branch, client="openai" if method == "fork" else "httpx")
    agent.expect({"root": (), "branch": ("root",), "end": ("root",)})
    assert agent.thread_of("branch") != agent.thread_of("root")
    assert agent.backend.by_content()["end"]["x-autellix-flags"] == "truncated"


@row(
    "`ProcessPoolExecutor`: spawn, fork, forkserver",
    "the job carries its program, and returns its calls with its result",
)
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_process_pool(agent: Agent, tmp_path: Path, method: str) -> None:
    branch = (
        "pool = ProcessPoolExecutor(2, mp_context=context); "
        "assert list(pool.map(ask, 'ab')) == ['a', 'b']; pool.shutdown()"
    )
    run_processes(agent, tmp_path, method, branch)
    agent.expect(FORK_JOIN)
    assert agent.thread_of("root") not in {agent.thread_of("a"), agent.thread_of("b")}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_job_of_a_process_pool_that_goes_on_after_its_scope(
    agent: Agent, tmp_path: Path, method: str
) -> None:
    after = """
    from autellix._programs.registry import programs

    pool = ProcessPoolExecutor(1, mp_context=context)
    with autellix.program("outer") as program:
        ask("started")
        job = pool.submit(late, sys.argv[0] + ".gate")
    assert program.program_id in programs._open
    open(sys.argv[0] + ".gate", "w").close()
    job.result()
    pool.shutdown()
    assert program.program_id not in programs._open
    """
    run_processes(agent, tmp_path, method, "pass", after)
    calls = agent.backend.by_content()
    assert calls["late"]["x-autellix-program-id"] == calls["started"]["x-autellix-program-id"]
    assert agent.backend.dag()["late"] == ("started",)
    agent.backend.wait_for("DELETE", "/programs/" + calls["late"]["x-autellix-program-id"])


def test_process_carries_the_group(agent: Agent, tmp_path: Path) -> None:
    branch = "process = context.Process(target=ask, args=('branch',)); process.start(); process.join()"
    branch = f"with autellix.program('rollout', group='g17'): {branch}"
    run_processes(agent, tmp_path, "spawn", branch)
    assert agent.backend.by_content()["branch"]["x-autellix-group"] == "g17"


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_job_of_a_process_pool_that_raises_is_a_parent(agent: Agent, tmp_path: Path, method: str) -> None:
    branch = (
        "pool = ProcessPoolExecutor(1, mp_context=context); job = pool.submit(fail, 'branch'); "
        "error = job.exception(); pool.shutdown(); assert type(error) is LookupError, error"
    )
    run_processes(agent, tmp_path, method, branch)
    agent.expect(ONE_BRANCH)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_process_that_serves_many_programs(agent: Agent, tmp_path: Path, method: str) -> None:
    """It leaves the program in which it was started when that ends, in the other process."""
    branch = "jobs, answers = context.Queue(), context.Queue(); process = start(context, jobs, answers)"
    after = """
    for name in ("another", None):
        with autellix.program("other"):
            jobs.put(name)
            answers.get() if name else process.join()
    """
    run_processes(agent, tmp_path, method, branch, after)
    assert agent.programs() == {"root": "agent", "first": "agent", "end": "agent", "another": "program.py"}


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_other_process_does_not_end_a_program_with_a_chosen_id(
    agent: Agent, tmp_path: Path, method: str
) -> None:
    branch = "process = context.Process(target=reopen, args=('chosen',)); process.start(); process.join()"
    branch = f"with autellix.program('agent', id='chosen'): {branch}; ask('within')"
    run_processes(agent, tmp_path, method, branch)
    ended = [path for method, path, _ in agent.backend.control if method == "DELETE" and "/programs/" in path]
    assert agent.programs()["reopened"] == "agent"
    # Once by each of the two programs' own process.
    assert sorted(path.rpartition("/")[2].startswith("program-") for path in ended) == [False, True]


def test_other_process_does_not_end_a_program_around_its_own(agent: Agent, tmp_path: Path) -> None:
    """It is started in an inner program, and opens the outer one, which is still open where it came from."""
    branch = "process = context.Process(target=reopen, args=('chosen',)); process.start(); process.join()"
    branch = f"with autellix.program('agent', id='chosen'), autellix.program('inner'): {branch}"
    run_processes(agent, tmp_path, "spawn", branch)
    assert agent.programs()["reopened"] == "agent"
    ended = [path for method, path, _ in agent.backend.control if method == "DELETE" and "/programs/" in path]
    assert not any(path.endswith("/chosen") for path in ended)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_other_process_does_not_end_the_session_that_it_was_started_in(
    agent: Agent, tmp_path: Path, method: str
) -> None:
    branch = "process = context.Process(target=ask, args=('branch',)); process.start(); process.join()"
    branch = f"with autellix.session(id='shared'), autellix.program('agent'): {branch}; ask('within')"
    run_processes(agent, tmp_path, method, branch)
    calls = agent.backend.by_content()
    assert {calls[name]["x-autellix-session-id"] for name in ("branch", "within")} == {"shared"}
    ends = [path for method, path, _ in agent.backend.control if method == "DELETE"]
    assert [path.endswith("/sessions/shared") for path in ends].count(True) == 1


@row(
    "`multiprocessing.Pool`",
    "each item carries its program and has parents; joins are not seen, as with `Process`",
    "works, with a limit",
)
def test_multiprocessing_pool(agent: Agent, tmp_path: Path) -> None:
    branch = "pool = context.Pool(2); pool.map(ask, 'ab'); pool.close(); pool.join()"
    run_processes(agent, tmp_path, "spawn", branch)
    agent.expect({**FORK_JOIN, "end": ("root",)})


@row("`subprocess`", "a separate program, unless you pass AUTELLIX_PROGRAM_ID (and _NAME) to it", "limit")
def test_subprocess(agent: Agent, run_script: Callable[..., str]) -> None:
    script = """
        import autellix, openai, sys
        client = openai.OpenAI(base_url=sys.argv[1], api_key="key")
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "child"}])
    """
    where = {"AUTELLIX_BASE_URL": agent.backend.url}
    run_script(script, agent.backend.url, AUTELLIX_PROGRAM_ID="mine", AUTELLIX_PROGRAM_NAME="agent", **where)
    (child,) = agent.backend.calls
    assert (child["x-autellix-program-id"], child["x-autellix-program-name"]) == ("mine", "agent")
    assert "x-autellix-flags" not in child


# --- asyncio ---


@row("`asyncio.create_task`, `ensure_future`", "the task carries its program")
@pytest.mark.parametrize("spawn", [asyncio.create_task, asyncio.ensure_future])
async def test_task(agent: Agent, spawn: Callable[..., Any]) -> None:
    await in_program_async(agent, lambda call: spawn(call()))
    agent.expect(ONE_BRANCH)


@row("`asyncio.gather`", "each coroutine becomes a task")
async def test_gather(agent: Agent) -> None:
    await in_program_async(agent, lambda _: asyncio.gather(agent.aask("a"), agent.aask("b")))
    agent.expect(FORK_JOIN)


@row("`asyncio.TaskGroup`", "as tasks")
async def test_task_group(agent: Agent) -> None:
    async def branches(_: object) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(agent.aask("a"))
            group.create_task(agent.aask("b"))

    await in_program_async(agent, branches)
    agent.expect(FORK_JOIN)


@row("a race: `asyncio.wait(…, FIRST_COMPLETED)`", "only the finished branch is a parent")
async def test_race(agent: Agent) -> None:

    async with autellix.program("agent"):
        await agent.aask("root")
        gate = asyncio.Event()
        fast = asyncio.create_task(agent.aask("fast"))

        async def slow() -> None:
            await gate.wait()
            await agent.aask("slow")

        loser = asyncio.create_task(slow())
        await asyncio.wait({fast, loser}, return_when=asyncio.FIRST_COMPLETED)
        await agent.aask("end")
        gate.set()
        await loser
    agent.expect({"root": (), "fast": ("root",), "end": ("fast",), "slow": ("root",)})


@row("`loop.run_in_executor`, `asyncio.to_thread`", "both submit to a pool")
async def test_executor_of_the_loop(agent: Agent) -> None:

    async with autellix.program("agent"):
        await agent.aask("root")
        await asyncio.get_running_loop().run_in_executor(None, agent.ask, "first")
        await asyncio.to_thread(agent.ask, "second")
    agent.expect({"root": (), "first": ("root",), "second": ("first",)})


@row("`asyncio.run_coroutine_threadsafe`", "the task is a branch of the thread that submits it")
async def test_run_coroutine_threadsafe(agent: Agent) -> None:
    async def branch(call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(call(), loop).result())

    await in_program_async(agent, branch)
    agent.expect(ONE_BRANCH)


@row("`loop.call_soon_threadsafe`, `call_later`, `call_at`", "the callback is a branch, and so are its tasks")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["threadsafe", "later", "at"])
def test_loop_callbacks(agent: Agent, loop: str, how: str) -> None:
    async def branch(call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        loop = asyncio.get_running_loop()
        tasks: asyncio.Queue[asyncio.Task[str]] = asyncio.Queue()

        def callback() -> None:
            tasks.put_nowait(loop.create_task(call()))

        if how == "threadsafe":
            loop.call_soon_threadsafe(callback)
        elif how == "later":
            loop.call_later(0.001, callback)
        else:
            loop.call_at(loop.time() + 0.001, callback)
        await (await tasks.get())

    run_on(loop, in_program_async(agent, branch))
    agent.expect(ONE_BRANCH)


@row(
    "`loop.call_soon`, `task.add_done_callback`",
    "not patched, because every step of every task passes there; wrap the callback in `autellix.propagate`",
    "limit",
)
async def test_call_soon(agent: Agent) -> None:
    async def branch(call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        loop = asyncio.get_running_loop()
        tasks: asyncio.Queue[asyncio.Task[str]] = asyncio.Queue()
        loop.call_soon(autellix.propagate(lambda: tasks.put_nowait(loop.create_task(call()))))
        await (await tasks.get())

    await in_program_async(agent, branch)
    agent.expect(ONE_BRANCH)


@row("uvloop", "tasks, timers and `to_thread`, as with asyncio's own loop")
def test_uvloop(agent: Agent) -> None:
    def branches(_: object) -> Awaitable[object]:
        return asyncio.gather(agent.aask("a"), asyncio.to_thread(agent.ask, "b"))

    run_on("uvloop", in_program_async(agent, branches))
    agent.expect(FORK_JOIN)


@row("many programs as tasks of one thread", "each task has its own; an `await` copies nothing")
async def test_interleaved_programs(agent: Agent) -> None:
    async def program(name: str) -> None:
        async with autellix.program(name):
            await agent.aask(name + "1")
            await asyncio.gather(*(agent.aask(name + str(number)) for number in (2, 3)))

    await asyncio.gather(*(program(name) for name in "xyz"))
    programs = agent.programs()
    assert len(programs) == 9
    assert all(name[0] == program for name, program in programs.items())


@row("fire-and-forget tasks", "they are in the program that started them, and it ends with the last of them")
async def test_fire_and_forget(agent: Agent) -> None:

    gate = asyncio.Event()

    async def later() -> None:
        await gate.wait()
        await agent.aask("late")

    async with autellix.program("agent"):
        await agent.aask("root")
        task = asyncio.create_task(later())
    assert not [entry for entry in agent.backend.control if entry[0] == "DELETE"]
    gate.set()
    await task
    agent.expect({"root": (), "late": ("root",)})
    agent.backend.wait_for("DELETE", "/programs/")


@row("`asyncio.Task(…)` made directly", "in no program until it opens one; the class takes no patch", "limit")
async def test_task_made_directly(agent: Agent) -> None:
    await in_program_async(agent, lambda call: asyncio.Task(call()))
    assert agent.programs() == {"root": "agent", "branch": None, "end": "agent"}


@row("`create_task(…, eager_start=True)`, also of a `TaskGroup`", "as with `create_task`; from Python 3.14")
@pytest.mark.skipif(sys.version_info < (3, 14), reason="from Python 3.14")
@pytest.mark.parametrize("is_grouped", [False, True])
async def test_eager_start(agent: Agent, is_grouped: bool) -> None:
    """The first step looks its program up, within `create_task`."""

    async def branch() -> str:
        agent.ask("branch")
        await asyncio.sleep(0)
        return agent.ask("second")

    async with autellix.program("agent"):
        agent.ask("root")
        eager: Any = {"eager_start": True}
        if is_grouped:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch(), **eager)
        else:
            await asyncio.create_task(branch(), **eager)
        agent.ask("end")
    assert agent.backend.dag() == {"root": (), "branch": ("root",), "second": ("branch",), "end": ("second",)}
    assert set(agent.programs().values()) == {"agent"}


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="from Python 3.12")
async def test_eager_tasks_made_directly(agent: Agent) -> None:
    factory: Any = getattr(asyncio, "eager_task_factory", None)
    await in_program_async(agent, lambda call: factory(asyncio.get_running_loop(), call()))
    agent.expect(ONE_BRANCH)


@row(
    "a task or thread that serves other programs, such as a batcher that the first one starts",
    "a task stays in the program that started it, a thread while that is open; the client cannot tell it "
    "from other work: start it in `autellix.detached()`",
    "limit",
)
@pytest.mark.parametrize("is_detached", [False, True])
async def test_batcher_that_one_program_has_started_serves_others(agent: Agent, is_detached: bool) -> None:
    jobs: asyncio.Queue[str | None] = asyncio.Queue()

    async def serve() -> None:
        while (job := await jobs.get()) is not None:
            await agent.aask(job)

    async with autellix.program("first"):
        with autellix.detached() if is_detached else contextlib.nullcontext():
            batcher = asyncio.create_task(serve())
        await agent.aask("root")
    async with autellix.program("second", id="batched", continues=True):
        await jobs.put("second's")
        await jobs.put(None)
        await batcher
    assert agent.programs() == {"root": "first", "second's": None if is_detached else "first"}


def test_worker_of_one_turn_is_not_part_of_the_next(agent: Agent) -> None:
    gate = threading.Event()
    with autellix.program("agent", id="worked", continues=True):
        worker = threading.Thread(target=lambda: gate.wait() and agent.ask("late"))
        worker.start()
        agent.ask("first")
    with autellix.program("agent", id="worked"):
        gate.set()
        worker.join()
        agent.ask("second")
    assert agent.programs() == {"first": "agent", "late": None, "second": "agent"}
    assert agent.backend.dag()["second"] == ("first",)


def test_work_after_a_session_is_not_in_it(agent: Agent) -> None:
    gate = threading.Event()
    with autellix.session(id="over"):
        worker = threading.Thread(target=lambda: gate.wait() and agent.ask("late"))
        worker.start()
        agent.ask("inside")
    gate.set()
    worker.join()
    sessions = {name: call["x-autellix-session-id"] for name, call in agent.backend.by_content().items()}
    assert sessions == {"inside": "over", "late": autellix.current().session_id}


def test_turns_of_one_id_at_once(agent: Agent) -> None:
    """The next turn follows all of them."""

    def turn(name: str) -> None:
        with autellix.program("agent", id="turns", continues=True):
            agent.ask(name)

    turn("root")
    first = autellix.program("agent", id="turns", continues=True)
    second = autellix.program("agent", id="turns", continues=True)
    with first:
        agent.ask("a")
        # In a thread that inherits nothing: another request of a server.
        with Suppressed():
            other = threading.Thread(target=lambda: second.__enter__() and agent.ask("b"))
            other.start()
        other.join()
    second.__exit__(None, None, None)
    turn("end")
    agent.expect(FORK_JOIN)


def test_program_inside_itself_goes_on(agent: Agent) -> None:
    with autellix.program("agent", id="nested"):
        agent.ask("first")
        with autellix.program("agent", id="nested"):
            agent.ask("second")
        agent.ask("third")
    agent.expect({"first": (), "second": ("first",), "third": ("second",)})


@row("a cancelled task", "its calls so far are parents; nothing else changes")
async def test_cancelled_task(agent: Agent) -> None:

    async with autellix.program("agent"):
        await agent.aask("root")
        called = asyncio.Event()

        async def hang() -> None:
            await agent.aask("branch")
            called.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await agent.aask("end")
    agent.expect(ONE_BRANCH)


@row("a branch that raises", "you get its error, and its calls are parents")
def test_failed_branch(agent: Agent) -> None:
    def fail() -> None:
        agent.ask("branch")
        raise KeyError("mine")

    def branch(call: object) -> None:
        with ThreadPoolExecutor(1) as pool, pytest.raises(KeyError, match="mine"):
            pool.submit(fail).result()

    in_program(agent, branch)
    agent.expect(ONE_BRANCH)


# --- anyio ---


@row("anyio task groups", "on asyncio they make tasks")
def test_anyio_task_group(agent: Agent) -> None:
    async def branches(_: object) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(agent.aask, "a")
            group.start_soon(agent.aask, "b")

    anyio.run(in_program_async, agent, branches)
    agent.expect(FORK_JOIN)


@row(
    "`anyio.to_thread.run_sync`",
    "the job carries its program; reused workers keep nothing",
)
def test_anyio_worker_threads(agent: Agent) -> None:
    async def main() -> None:
        for name in ("x", "y"):
            async with autellix.program(name):
                await anyio.to_thread.run_sync(agent.ask, name)
        await anyio.to_thread.run_sync(agent.ask, "none")

    anyio.run(main)
    assert agent.programs() == {"x": "x", "y": "y", "none": None}


@row("`anyio.from_thread.run`, blocking portals", "the task in the loop is a branch of the thread")
def test_anyio_from_thread(agent: Agent) -> None:
    async def branch(call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(call))

    anyio.run(in_program_async, agent, branch)
    agent.expect(ONE_BRANCH)


def test_anyio_portal(agent: Agent) -> None:
    with anyio.from_thread.start_blocking_portal() as portal:
        in_program(agent, lambda call: portal.call(agent.aask, "branch"))
    agent.expect(ONE_BRANCH)


# --- generators ---


@row(
    "a generator with a scope inside",
    "the scope is the generator's own, and waits while the generator is suspended",
)
def test_scope_in_a_generator(agent: Agent) -> None:
    def steps() -> Iterator[str]:
        with autellix.program("generator"):
            for number in "12":
                yield agent.ask("inside" + number)

    with autellix.program("consumer"):
        for name in steps():
            agent.ask(name + ", outside")
    assert agent.programs() == {
        "inside1": "generator",
        "inside1, outside": "consumer",
        "inside2": "generator",
        "inside2, outside": "consumer",
    }
    assert agent.backend.dag()["inside2"] == ("inside1",)
    assert agent.backend.dag()["inside2, outside"] == ("inside1, outside",)


@row("generators driven in turn", "each keeps its own program")
def test_interleaved_generators(agent: Agent) -> None:
    def steps(program: str) -> Iterator[str]:
        with autellix.program(program):
            for number in "123":
                yield agent.ask(program + number)

    for _ in zip(steps("x"), steps("y"), strict=True):
        pass
    programs = agent.programs()
    assert len(programs) == 6
    assert all(name[0] == program for name, program in programs.items())


@row("a generator driven by several threads", "the scope moves with the generator")
def test_generator_over_threads(agent: Agent) -> None:
    def steps() -> Generator[str, None, None]:
        with autellix.program("agent"):
            yield agent.ask("first")
            yield agent.ask("second")

    generator = steps()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        one.submit(next, generator).result()
        two.submit(next, generator).result()
        one.submit(agent.ask, "none").result()
    generator.close()
    assert agent.programs() == {"first": "agent", "second": "agent", "none": None}
    assert agent.backend.dag()["second"] == ("first",)


@row("an async generator with a scope inside", "as with a generator; what it spawns is a branch of it")
async def test_scope_in_an_async_generator(agent: Agent) -> None:
    async def steps() -> AsyncIterator[str]:
        async with autellix.program("generator"):
            yield await agent.aask("inside1")
            yield await asyncio.create_task(agent.aask("inside2"))

    async for name in steps():
        await agent.aask(name + ", outside")
    assert agent.programs() == {
        "inside1": "generator",
        "inside1, outside": None,
        "inside2": "generator",
        "inside2, outside": None,
    }


@row("a generator that is abandoned", "its scope ends with it, and nothing remains")
def test_abandoned_generator(agent: Agent) -> None:
    def steps() -> Iterator[None]:
        with autellix.program("generator"):
            yield

    generator = steps()
    next(generator)
    del generator
    agent.ask("after")
    assert agent.programs() == {"after": None}
    agent.backend.wait_for("POST", "sessions")


@row("decorated generators and async generators", "every run is a program, while it runs")
def test_decorated_generator(agent: Agent) -> None:
    @autellix.program("generator")
    def steps() -> Iterator[str]:
        yield agent.ask("inside")

    for name in steps():
        agent.ask(name + ", outside")
    assert agent.programs() == {"inside": "generator", "inside, outside": None}


@row("`@contextmanager` and `ExitStack` around a scope", "the scope is for the body of the `with` statement")
def test_scope_in_a_context_manager(agent: Agent) -> None:
    @contextlib.contextmanager
    def helper() -> Iterator[None]:
        with autellix.program("agent"):
            yield

    with helper():
        agent.ask("manager")
    with contextlib.ExitStack() as stack:
        stack.enter_context(helper())
        agent.ask("stack")
    agent.ask("after")
    assert agent.programs() == {"manager": "agent", "stack": "agent", "after": None}


@row("`@asynccontextmanager` around a scope", "likewise")
async def test_scope_in_an_async_context_manager(agent: Agent) -> None:
    @contextlib.asynccontextmanager
    async def helper() -> AsyncIterator[None]:
        async with autellix.program("agent"):
            yield

    async with helper():
        await asyncio.create_task(agent.aask("inside"))
    await agent.aask("after")
    assert agent.programs() == {"inside": "agent", "after": None}


def test_generator_that_runs_an_event_loop(agent: Agent) -> None:
    """The scope of a generator that blocks in a loop does not cover the tasks' own programs."""

    async def other() -> None:
        async with autellix.program("other"):
            await agent.aask("other's")

    async def main() -> None:
        await asyncio.gather(other(), agent.aask("its own"))

    def steps() -> Iterator[None]:
        with autellix.program("generator"):
            asyncio.run(main())
            yield

    next(steps())
    assert agent.programs() == {"other's": "other", "its own": "generator"}


# --- scopes ---


@row(
    "nested programs",
    "inside, calls belong to the inner one, with a DAG of its own; after it, to the outer one",
)
def test_nested_programs(agent: Agent) -> None:
    with autellix.program("outer"):
        agent.ask("one")
        with autellix.program("inner"):
            agent.ask("two")
        agent.ask("three")
    assert agent.programs() == {"one": "outer", "two": "inner", "three": "outer"}
    assert agent.backend.dag() == {"one": (), "two": (), "three": ("one",)}


@row("scopes closed out of order, or in another thread", "each ends where it is closed")
def test_scopes_out_of_order(agent: Agent) -> None:
    first, second = autellix.program("first"), autellix.program("second")
    first.__enter__()
    second.__enter__()
    thread = threading.Thread(target=first.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    agent.ask("in second")
    second.__exit__(None, None, None)
    agent.ask("after")
    assert agent.programs() == {"in second": "second", "after": None}


@row("`autellix.thread(name)`", "a role is one thread for all its tasks; the order of calls stays")
def test_thread_scope(agent: Agent) -> None:
    with autellix.program("agent"):
        for number in "12":
            for role in ("planner", "writer"):
                with autellix.thread(role):
                    agent.ask(role + number)
    agent.expect(
        {"planner1": (), "writer1": ("planner1",), "planner2": ("writer1",), "writer2": ("planner2",)}
    )
    assert agent.thread_of("planner1") == agent.thread_of("planner2")
    assert agent.thread_of("writer1") == agent.thread_of("writer2") != agent.thread_of("planner1")


@row(
    "`autellix.program(id=…, continues=True)`",
    "the turns of a conversation are one program, one after another",
)
def test_program_of_several_turns(agent: Agent) -> None:
    for number in "12":
        with autellix.program("agent", id="conversation", continues=True):
            agent.ask("turn" + number)
    agent.expect({"turn1": (), "turn2": ("turn1",)})
    with autellix.program(id="conversation"):
        pass
    agent.backend.wait_for("DELETE", "/programs/conversation")


@row(
    "`autellix.propagate(function)`",
    "every run is a branch of the place where it was wrapped; sync and async functions",
)
async def test_propagate(agent: Agent) -> None:
    with autellix.program("agent"):
        agent.ask("root")
        sync, asynchronous = autellix.propagate(agent.ask), autellix.propagate(agent.aask)
        with autellix.program("other"):
            sync("a")
            await asynchronous("b")
        agent.ask("end")
    agent.expect(FORK_JOIN)


# --- the table itself ---


def test_the_documentation_names_every_limit() -> None:
    page = Path(__file__).parents[2] / "docs/guides/sdk.md"
    text = page.read_text(encoding="utf-8")
    limits = [entry.markdown() for entry in ROWS if entry.verdict != "works"]
    assert limits
    assert [line for line in limits if line not in text] == []
