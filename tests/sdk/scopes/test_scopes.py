"""`program` in each of its forms."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

import autellix
from autellix._programs import registry
from autellix._programs.program import ClientProgram
from autellix._programs.running import running_thread
from autellix._programs.thread import ProgramThread
from autellix._scopes.scopes import BranchScope
from autellix_wire.ids import is_header_value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from tests.sdk.propagation import Agent


def name_here() -> str | None:
    return autellix.current().name


def test_every_run_of_a_function_is_a_program(sdk: None) -> None:
    @autellix.program("agent")
    def agent(word: str) -> tuple[str, str, str | None]:
        """Docs."""
        return word, autellix.current().program_id, name_here()

    first, second = agent("x"), agent("x")
    assert (first[0], first[2]) == ("x", "agent")
    assert first[1] != second[1]
    assert (agent.__name__, agent.__doc__) == ("agent", "Docs.")
    # AutoGen resolves annotations there.
    assert agent.__globals__ is globals()


def test_decorated_coroutine_function_is_one(sdk: None) -> None:
    assert inspect.iscoroutinefunction(autellix.program("agent")(plain_coroutine))


def test_generator_protocol_is_kept(sdk: None) -> None:
    closed = []

    @autellix.program("generator")
    def talk() -> Generator[str, str, str]:
        try:
            word = yield "start"
            try:
                yield word
            except KeyError:
                yield "caught"
            return "done"
        finally:
            closed.append(name_here())

    generator = talk()
    assert next(generator) == "start"
    assert generator.send("word") == "word"
    assert generator.throw(KeyError()) == "caught"
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "done"
    abandoned = talk()
    next(abandoned)
    abandoned.close()
    assert closed == ["generator", "generator"]
    assert name_here() is None


async def test_async_generators_keep_their_scope_to_themselves(sdk: None) -> None:
    closed = []

    @autellix.program("generator")
    async def steps() -> AsyncIterator[str | None]:
        try:
            for _ in range(3):
                await asyncio.sleep(0)
                yield name_here()
        finally:
            closed.append(name_here())

    async for name in steps():
        assert (name, name_here()) == ("generator", None)
    abandoned = steps()
    await anext(abandoned)
    await abandoned.aclose()  # type: ignore[attr-defined]
    failing = steps()
    await anext(failing)
    with pytest.raises(KeyError):
        await failing.athrow(KeyError())  # type: ignore[attr-defined]
    assert closed == ["generator"] * 3


def test_one_scope_object_serves_many_threads(sdk: None) -> None:
    scope, barrier = autellix.program("a"), threading.Barrier(8)
    seen: list[tuple[str | None, str | None]] = []

    def work() -> None:
        with scope as identity:
            barrier.wait()
            seen.append((identity.program_id, autellix.current().program_id))
            barrier.wait()
        seen.append((None, name_here()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inside = [pair for pair in seen if pair[0]]
    assert all(entered == current for entered, current in inside)
    assert len({entered for entered, _ in inside}) == 8
    assert [pair for pair in seen if not pair[0]] == [(None, None)] * 8


def test_exceptions_pass_untouched(sdk: None) -> None:
    error = KeyError("users")
    with pytest.raises(KeyError) as caught, autellix.program("a"):
        raise error
    assert caught.value is error
    assert name_here() is None


@pytest.mark.parametrize("bad", ["", " ", "ü", "x" * 257, "a\nb"])
def test_malformed_id_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="id: "):
        autellix.program(id=bad)


@pytest.mark.parametrize("name", ["x" * 255 + " tail", "ü" * 200, "\ud800", " padded ", "a\nb"])
def test_name_is_cut_to_what_a_header_carries(sdk: None, name: str) -> None:
    with autellix.program(name):
        assert is_header_value(name_here())


@pytest.mark.parametrize("name", ["", " ", "\n"])
def test_empty_name_is_no_name(sdk: None, name: str) -> None:
    with autellix.program(name):
        assert name_here() is None


@pytest.mark.parametrize("make", [autellix.program, autellix.thread, autellix.session])
def test_decorator_without_parentheses_is_refused_with_the_cure(make: Any) -> None:
    with pytest.raises(TypeError, match=rf"@autellix.{make.__name__}\(\)"):
        make(name_here)


@pytest.mark.parametrize("make", [autellix.program, autellix.thread, autellix.session])
def test_name_that_is_no_text_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match="got a int; expected text"):
        make(123)
    with pytest.raises(TypeError, match="id is a int; expected text"):
        autellix.program(id=123)  # type: ignore[arg-type]


@pytest.mark.parametrize("thing", [None, 7, "text", int])
def test_only_functions_are_decorated(thing: Any) -> None:
    with pytest.raises(TypeError, match="expected a function"):
        autellix.program("a")(thing)
    with pytest.raises(TypeError, match="expected a function"):
        autellix.propagate(thing)


def test_methods_of_every_kind_are_decorated(sdk: None) -> None:
    class Agent:
        @autellix.program("static")
        @staticmethod
        def static(word: str) -> tuple[str, str | None]:
            return word, name_here()

        @autellix.program("class")
        @classmethod
        def of_class(cls, word: str) -> tuple[type, str, str | None]:
            return cls, word, name_here()

        @autellix.program("method")
        def method(self, word: str) -> tuple[str, str | None]:
            return word, name_here()

    assert Agent.static("x") == Agent().static("x") == ("x", "static")
    assert Agent.of_class("x") == (Agent, "x", "class")
    assert Agent().method("x") == ("x", "method")


class AsyncCallable:
    async def __call__(self) -> str | None:
        await asyncio.sleep(0)
        return name_here()


async def plain_coroutine() -> str | None:
    await asyncio.sleep(0)
    return name_here()


def plain_generator() -> Iterator[str | None]:
    yield name_here()
    yield name_here()


async def plain_async_generator() -> AsyncIterator[str | None]:
    yield name_here()
    await asyncio.sleep(0)
    yield name_here()


@pytest.mark.parametrize("work", [AsyncCallable(), plain_coroutine, lambda: plain_coroutine()])
async def test_whatever_returns_a_coroutine_runs_in_its_scope(sdk: None, work: Any) -> None:
    assert await autellix.program("agent")(work)() == "agent"
    with autellix.program("origin"):
        carried = autellix.propagate(work)
    assert await carried() == "origin"
    assert name_here() is None


@pytest.mark.parametrize("work", [plain_generator, lambda: plain_generator()])
def test_whatever_returns_a_generator_runs_in_its_scope(sdk: None, work: Any) -> None:
    with autellix.program("origin"):
        carried = autellix.propagate(work)
    for name, run in (("agent", autellix.program("agent")(work)), ("origin", carried)):
        for seen in run():
            assert (seen, name_here()) == (name, None)


@pytest.mark.parametrize("work", [plain_async_generator, lambda: plain_async_generator()])
async def test_whatever_returns_an_async_generator_runs_in_its_scope(sdk: None, work: Any) -> None:
    with autellix.program("origin"):
        carried = autellix.propagate(work)
    for name, run in (("agent", autellix.program("agent")(work)), ("origin", carried)):
        async for seen in run():
            assert (seen, name_here()) == (name, None)


def test_fault_at_a_scopes_ends_does_not_reach_the_block(sdk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("autellix._scopes.scopes.programs.open", fail)
    with autellix.program("a") as identity:
        assert identity.is_implicit
    monkeypatch.undo()
    monkeypatch.setattr("autellix._scopes.scopes.programs.close", fail)
    with autellix.program("a"):
        pass
    assert name_here() is None
    # The program that could not be closed.
    registry.programs._open.clear()


async def test_a_thousand_nested_tasks(agent: Agent) -> None:
    """Each awaits the next, and the innermost calls."""

    async def nest(depth: int) -> None:
        if depth == 0:
            await agent.aask("branch")
        else:
            await asyncio.create_task(nest(depth - 1))

    async with autellix.program("agent"):
        await agent.aask("root")
        tasks = nest(1000)
        await asyncio.create_task(tasks)
        await agent.aask("end")
    assert agent.backend.dag()["end"] == ("branch",)


def test_branches_nest_more_deeply_than_python_recurses() -> None:
    root = thread = ProgramThread(ClientProgram("a", None), ())
    root.record_call("root")
    kept = []
    for number in range(3000):
        thread = thread.branch()
        kept.append(thread)
        thread.record_call(f"call-{number}")
    for closed in kept:
        closed.is_closed = True
    assert root.record_call("end") == ("call-2999",)


def test_open_scopes_and_propagated_functions_pickle(sdk: None) -> None:
    """A copy of a scope has not been entered; a copy of a propagated function runs at the same place."""
    with autellix.program("outer") as outer:
        scope = autellix.program("inner")
        with scope:
            copied = pickle.loads(pickle.dumps(scope))
            branch = pickle.loads(pickle.dumps(BranchScope(running_thread().branch())))
            with copied:
                assert name_here() == "inner"
        assert pickle.loads(pickle.dumps(outer)).program_id == outer.program_id
    assert not any(program.name == "inner" for program in registry.programs._open.values())
    with branch:
        assert name_here() == "inner"
    assert name_here() is None
