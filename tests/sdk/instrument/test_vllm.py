"""Requests to a vLLM engine of this process, with as much of vLLM's classes as the client patches."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.client import switched_on

import autellix
from autellix._instrument import vllm as instrumented
from autellix_wire import engine_args

SCHEDULER = "autellix_backend.vllm_plugin.scheduler.AutellixScheduler"


@dataclass
class Params:
    """Sampling parameters."""

    n: int = 1
    extra_args: dict[str, Any] | None = None


@dataclass
class Request:
    """What a processor and the core get."""

    request_id: str
    sampling_params: Params | None
    session_id: str | None = None
    prompt: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        return (self.sampling_params and self.sampling_params.extra_args) or {}


class OutputProcessor:
    """Knows the requests in flight."""

    def __init__(self) -> None:
        self.request_states: dict[str, Request] = {}

    def add_request(
        self, request: Request, prompt: Any, parent_req: Any = None, request_index: int = 0, queue: Any = None
    ) -> None:
        assert request.prompt == prompt
        self.request_states[request.request_id] = request


class Engine:
    """What both engines have: each request passes the processor, and then the core gets it."""

    def __init__(self, scheduler_cls: Any = SCHEDULER) -> None:
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(scheduler_cls=scheduler_cls))
        self.output_processor = OutputProcessor()
        self.core: list[Request] = []

    def add(self, prompt: str, params: Any, queue: Any = None, **given: Any) -> None:
        count = params.n if isinstance(params, Params) else 1
        parent = SimpleNamespace(sampling_params=params) if count > 1 else None
        for index in range(count):
            request = Request(f"{len(self.core)}", copy.copy(params), prompt=prompt, **given)
            self.output_processor.add_request(request, prompt, parent, index, queue)
            self.core.append(request)


class LLMEngine(Engine):
    """That of `LLM`, which adds a batch before it steps."""

    def generate(self, prompts: Sequence[str], params: Any = None, **given: Any) -> None:
        params = params or Params()
        for prompt in prompts:
            self.add(prompt, params, **given)
        self.step()

    def step(self) -> None:
        self.output_processor.request_states.clear()


class AsyncLLM(Engine):
    """The asynchronous one."""

    async def generate(self, prompt: str, params: Any = None) -> None:
        self.add(prompt, params or Params(), queue=object())
        await asyncio.sleep(0)
        self.output_processor.request_states.clear()


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules that the client patches, and the client switched on."""
    # Of their own: one test must not see what another has patched.
    for name, engine in (("llm_engine", LLMEngine), ("async_llm", AsyncLLM)):
        module = ModuleType(f"vllm.v1.engine.{name}")
        vars(module).update({engine.__name__: engine, "OutputProcessor": OutputProcessor})
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with switched_on():
        yield


def by_prompt(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the arguments of the requests of an engine, by their prompts."""
    return {request.prompt: request.arguments for request in engine.core}


def dag(engine: Engine) -> dict[str, set[str] | None]:
    """Return the prompts that each prompt depends on; None if they are unknown."""
    found = by_prompt(engine)
    prompts = {arguments.get(engine_args.CALL): prompt for prompt, arguments in found.items()}
    return {
        prompt: None
        if (parents := arguments.get(engine_args.PARENTS)) is None
        else {prompts[parent] for parent in parents.split(",") if parent != "-"}
        for prompt, arguments in found.items()
    }


def ended(engine: Engine) -> list[list[str]]:
    """Return the ended programs that each request names."""
    return [json.loads(request.arguments.get(engine_args.ENDED, "[]")) for request in engine.core]


def test_a_request_names_its_program() -> None:
    engine = LLMEngine()
    with autellix.program("agent", group="task", priority="batch") as program:
        engine.generate(["first"])
        engine.generate(["second"])

    first, second = (request.arguments for request in engine.core)
    assert first == {
        engine_args.PROGRAM: program.program_id,
        engine_args.CALL: first[engine_args.CALL],
        engine_args.THREAD: "0",
        engine_args.PARENTS: "-",
        engine_args.CLASS: "agent",
        engine_args.GROUP: "task",
        engine_args.PRIORITY: "batch",
    }
    assert second[engine_args.PARENTS] == first[engine_args.CALL]


def test_the_prompts_of_a_batch_are_siblings() -> None:
    """They share the user's parameters, which stay as they are; what comes next depends on all."""
    engine, params = LLMEngine(), Params(extra_args={"mine": 1})
    with autellix.program("agent"):
        engine.generate(["plan"], params)
        engine.generate(["a", "b", "c"], params)
        engine.generate(["join"], params)

    assert dag(engine) == {
        "plan": set(),
        "a": {"plan"},
        "b": {"plan"},
        "c": {"plan"},
        "join": {"a", "b", "c"},
    }
    assert params == Params(extra_args={"mine": 1})
    assert {request.arguments["mine"] for request in engine.core} == {1}


def test_the_answers_of_one_request_are_siblings() -> None:
    engine = LLMEngine()
    with autellix.program("agent"):
        engine.generate(["n"], Params(n=3))
        engine.generate(["join"])

    *answers, join = (request.arguments for request in engine.core)
    assert [answer[engine_args.PARENTS] for answer in answers] == ["-"] * 3
    calls = [answer[engine_args.CALL] for answer in answers]
    assert len(set(calls)) == 3
    assert join[engine_args.PARENTS] == ",".join(calls)


def test_the_parents_of_a_join_of_many_are_unknown() -> None:
    """A header holds no more of them, and to leave some out would be wrong."""
    engine = LLMEngine()
    with autellix.program("agent"):
        engine.generate([str(number) for number in range(100)])
        engine.generate(["join"])
        engine.generate(["last"])

    found = dag(engine)
    assert (found["99"], found["join"], found["last"]) == (set(), None, {"join"})


def test_threads_of_a_program() -> None:
    engine, lock = LLMEngine(), threading.Lock()

    def ask(prompt: str) -> None:
        with lock:
            engine.generate([prompt])

    with autellix.program("agent"), ThreadPoolExecutor() as pool:
        ask("plan")
        list(pool.map(ask, ["a", "b"]))
        ask("join")

    assert dag(engine) == {"plan": set(), "a": {"plan"}, "b": {"plan"}, "join": {"a", "b"}}
    found = by_prompt(engine)
    assert found["a"][engine_args.THREAD] != found["b"][engine_args.THREAD]
    assert len({arguments[engine_args.PROGRAM] for arguments in found.values()}) == 1


async def test_tasks_with_an_asynchronous_engine() -> None:
    engine = AsyncLLM()

    @autellix.program("agent")
    async def agent(name: str) -> None:
        await engine.generate(f"{name} plan")
        await asyncio.gather(engine.generate(f"{name} a"), engine.generate(f"{name} b"))
        await engine.generate(f"{name} join")

    await asyncio.gather(agent("one"), agent("two"))

    for name in ("one", "two"):
        assert dag(engine)[f"{name} join"] == {f"{name} a", f"{name} b"}
    programs = {arguments[engine_args.PROGRAM] for arguments in by_prompt(engine).values()}
    assert len(programs) == 2


async def test_an_abandoned_stream_is_the_parent_of_what_follows() -> None:
    """Its reader has seen a part of the answer."""
    engine = AsyncLLM()
    with autellix.program("agent"):
        engine.add("stream", Params(), queue=object())
        await engine.generate("next")

    assert dag(engine) == {"stream": set(), "next": {"stream"}}


def test_ends_go_with_the_next_request_to_the_same_engine() -> None:
    """Of programs that have called it, and only once."""
    engine, other = LLMEngine(), LLMEngine()
    ids = []
    for name in ("first", "second"):
        with autellix.program(name) as program:
            engine.generate([name])
        ids.append(program.program_id)
    with autellix.program("other"):
        other.generate(["other"])
    with autellix.program("third"):
        engine.generate(["third"])
        engine.generate(["fourth"])

    assert ended(engine) == [[], [ids[0]], [ids[1]], []]
    assert ended(other) == [[]]


def test_turns_end_their_program_once() -> None:
    engine = LLMEngine()
    for _ in range(2):
        with autellix.program("chat", id="conversation", continues=True):
            engine.generate(["turn"])
    with autellix.program(id="conversation"):
        pass
    with autellix.program("other"):
        engine.generate(["other"])

    assert ended(engine) == [[], [], ["conversation"]]


def end_programs(engine: LLMEngine, count: int) -> None:
    """End this many programs that have called an engine, with no request meanwhile."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            stack.enter_context(autellix.program(str(number)))
            engine.generate(["inside"])


def test_many_ends_are_spread_over_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumented, "MAX_ENDED", 2)
    engine = LLMEngine()
    end_programs(engine, 5)
    with autellix.program("last"):
        for _ in range(4):
            engine.generate(["last"])

    assert [len(each) for each in ended(engine)[5:]] == [2, 2, 1, 0]


def test_the_ends_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest are kept."""
    monkeypatch.setattr(instrumented, "MAX_WAITING", 3)
    engine = LLMEngine()
    end_programs(engine, 10)
    with autellix.program("last"):
        engine.generate(["last"])

    # The innermost program ends first.
    ids = [request.arguments[engine_args.PROGRAM] for request in engine.core]
    assert ended(engine)[-1] == ids[2::-1]


def test_an_agent_in_lockstep_is_a_generator() -> None:
    """Several add a prompt each before the engine steps; each keeps its program and its order."""
    engine = LLMEngine()

    @autellix.program("agent")
    def agent(name: str) -> Iterator[None]:
        for step in range(2):
            engine.add(f"{name}{step}", Params())
            yield

    agents = [agent("a"), agent("b")]
    for _ in range(3):
        for each in agents:
            next(each, None)
        engine.step()

    assert dag(engine) == {"a0": set(), "b0": set(), "a1": {"a0"}, "b1": {"b0"}}
    assert len({arguments[engine_args.PROGRAM] for arguments in by_prompt(engine).values()}) == 2


class Own:
    """A scheduler of the user's."""


Derived = type("Derived", (type("Ours", (), {"__module__": SCHEDULER.rpartition(".")[0]}),), {})


@pytest.mark.parametrize(
    ("scheduler_cls", "is_ours"),
    [(None, False), ("mine.Scheduler", False), (Own, False), (SCHEDULER, True), (Derived, True)],
)
def test_only_our_scheduler_gets_arguments(scheduler_cls: Any, is_ours: bool) -> None:
    engine = LLMEngine(scheduler_cls)
    with autellix.program("agent"):
        engine.generate(["prompt"])
    assert bool(engine.core[0].arguments) is is_ours


@pytest.mark.parametrize("given", [{engine_args.PROGRAM: "mine"}, {engine_args.CALL: "mine"}])
def test_what_the_user_has_named_stays(given: dict[str, str]) -> None:
    engine = LLMEngine()
    with autellix.program("agent"):
        engine.generate(["prompt"], Params(extra_args=given))
        engine.generate(["session"], session_id="mine")
    assert [request.arguments for request in engine.core] == [given, {}]


def test_requests_outside_of_all_programs_stay() -> None:
    """The engine makes each a program."""
    engine = LLMEngine()
    engine.generate(["one", "two"])
    assert [request.arguments for request in engine.core] == [{}, {}]


def test_requests_without_sampling_parameters_stay() -> None:
    engine = LLMEngine()
    with autellix.program("agent"):
        engine.output_processor.add_request(Request("embedding", None), "")
    assert engine.output_processor.request_states["embedding"].sampling_params is None


def test_the_parts_of_a_streaming_session_are_one_call() -> None:
    engine = AsyncLLM()
    with autellix.program("agent"):
        for _ in range(2):
            request = Request("stream", Params())
            engine.output_processor.add_request(request, "", queue=object())
            engine.core.append(request)
    first, second = engine.core
    assert first.arguments
    assert not second.arguments


def test_nothing_changes_once_the_client_is_off() -> None:
    engine = LLMEngine()
    with autellix.program("agent"):
        autellix.uninstrument()
        engine.generate(["prompt"])
    assert not engine.core[0].arguments


def test_a_fault_of_ours_leaves_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("deliberate")

    engine = LLMEngine()
    monkeypatch.setattr(instrumented, "_arguments", fail)
    with autellix.program("agent"):
        engine.generate(["prompt"], params := Params(extra_args={"mine": 1}))
    assert (engine.core[0].arguments, params.extra_args) == ({"mine": 1}, {"mine": 1})
