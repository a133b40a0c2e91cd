"""Conversations and programs by the file or module that has compiled their graph."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE_S

from autellix.testing import RecordingBackend

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from langchain_core.runnables import RunnableLambda

from autellix_langchain import _origins
from autellix_langchain._origins import GraphOrigin, application_of

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

AGENT = """
    from langgraph.graph import START, MessagesState, StateGraph


    def compiled(ask, **options):
        def answer(state):
            return {"messages": [ask(state["messages"])]}

        return StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(**options)
"""
CHAT = (
    """
    import os, sqlite3, sys
    import autellix

    if "--lost" in sys.argv:
        os.rmdir(os.getcwd())
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver

    class FileSaver(InMemorySaver):
        # One that persists, as far as a conversation's id goes.
        def __init__(self, file):
            super().__init__()
            self.conn = sqlite3.connect(file, check_same_thread=False)
"""
    + AGENT
    + """
    if __name__ == "__main__":
        model = ChatOpenAI(base_url=os.environ["AUTELLIX_BASE_URL"], api_key="k", model="m", max_retries=0)
        chat = compiled(model.invoke, checkpointer=FileSaver(os.environ["SAVER_FILE"]))
        chat.invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "7"}})
"""
)
"""A script whose turns are processes of their own."""
INPUT: Any = {"messages": [("user", "hi")]}
Load = Callable[[str, str], Any]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a module that compiles graphs, by its name and the folder of its application."""

    def load(name: str, folder: str) -> Any:
        path = tmp_path / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(AGENT), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def turn(graph: Any, thread_id: str = "7") -> None:
    graph.invoke(INPUT, {"configurable": {"thread_id": thread_id}})


def programs(backend: RecordingBackend) -> list[tuple[str | None, str | None]]:
    return [(call.program_name, call.program_id) for call in backend.recorded]


def test_turns_of_a_script_are_one_program_whatever_its_arguments_and_folder(
    tmp_path: Path, backend: RecordingBackend
) -> None:
    """Also where the working folder is gone, which once lost the program."""
    script, folder = tmp_path / "chat.py", tmp_path / "elsewhere"
    script.write_text(textwrap.dedent(CHAT), encoding="utf-8")
    environ = {**os.environ, "AUTELLIX_BASE_URL": backend.url, "SAVER_FILE": str(tmp_path / "saver.db")}
    for where, path, arguments in (
        (tmp_path, "chat.py", ["--message", "Hello"]),
        (folder, "../chat.py", ["--message", "Bye", "--lost"]),
    ):
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, path, *arguments],
            cwd=where,
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
    found = programs(backend)
    assert len(found) == 2
    ((name, program_id),) = set(found)
    assert name == "chat.py"
    assert str(program_id).startswith("chat.py-7-")


def test_applications_of_one_server_share_no_conversation(
    chat: ChatOpenAI, backend: RecordingBackend, load: Load
) -> None:
    """Both are run by one `uvicorn`, and their modules, graphs and threads have the same names."""
    for folder in ("one", "two"):
        turn(load("app", folder).compiled(chat.invoke))
    (one, one_id), (two, two_id) = programs(backend)
    assert one == two == "app"
    assert one_id != two_id


async def test_all_ways_to_run_a_graph_are_one_conversation(
    chat: ChatOpenAI, backend: RecordingBackend, load: Load
) -> None:
    """From this module, in a task of its own, and as a copy with another configuration."""
    import asyncio

    graph = load("app", "one").compiled(chat.invoke)
    await asyncio.to_thread(turn, graph)
    await asyncio.create_task(graph.ainvoke(INPUT, {"configurable": {"thread_id": "7"}}))
    await asyncio.to_thread(turn, graph.with_config(recursion_limit=9))
    await asyncio.to_thread(turn, graph.with_config(tags=["a"]).with_config(tags=["b"]))
    assert len(programs(backend)) == 4
    assert len(set(programs(backend))) == 1


def test_a_graph_is_named_after_its_module_only_without_a_name(
    chat: ChatOpenAI, backend: RecordingBackend, load: Load
) -> None:
    module = load("support_graph", "one")
    module.compiled(chat.invoke).invoke(INPUT)
    module.compiled(chat.invoke, name="support").invoke(INPUT)
    module.compiled(chat.invoke).invoke(INPUT, {"run_name": "a run"})
    graph = module.compiled(chat.invoke)
    # What others see of it stays.
    assert graph.get_name() == graph.name == "LangGraph"
    assert [name for name, _ in programs(backend)] == ["support_graph", "support", "a run"]


def test_a_prebuilt_agent_is_named_after_the_users_module(
    chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    agents = pytest.importorskip("langchain.agents")
    agents.create_agent(chat, tools=[]).invoke(INPUT)
    assert [name for name, _ in programs(backend)] == [__name__]


def test_a_graph_from_before_the_client_keeps_langgraphs_name(
    chat: ChatOpenAI, backend: RecordingBackend, load: Load
) -> None:
    graph = load("app", "one").compiled(chat.invoke)
    _origins._origins.clear()
    turn(graph)
    ((name, program_id),) = programs(backend)
    assert name == "LangGraph"
    assert str(program_id).startswith("LangGraph-7-")


def test_a_chain_with_a_thread_is_a_conversation_of_its_process(
    chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    chain = RunnableLambda(lambda text: chat.invoke(str(text)).content).with_config(run_name="chain")
    for _ in range(2):
        chain.invoke("hi", {"metadata": {"thread_id": "7"}})
    ((_, program_id),) = set(programs(backend))
    assert len(programs(backend)) == 2
    assert str(program_id).startswith("chain-7-")


def test_applications_differ_by_file_and_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    one, console = GraphOrigin("app", "/one/app.py"), GraphOrigin("__main__", None)
    found = {application_of(one), application_of(GraphOrigin("app", "/two/app.py")), application_of(console)}
    assert application_of(GraphOrigin("renamed", "/one/app.py")) in found
    assert (one.name, console.name) == ("app", "LangGraph")
    assert GraphOrigin("__mp_main__", "/one/chat.py").name == "chat.py"
    monkeypatch.setenv("AUTELLIX_APPLICATION", "container-2")
    found.add(application_of(one))
    assert len(found) == 4


def test_origins_go_with_their_graphs(chat: ChatOpenAI, load: Load) -> None:
    import gc

    graph = load("app", "one").compiled(chat.invoke)
    assert graph in _origins._origins
    before = len(_origins._origins)
    del graph
    gc.collect()
    assert len(_origins._origins) < before


@pytest.mark.parametrize("file", [None, 7, b"/one/app.py", object()], ids=lambda file: type(file).__name__)
def test_code_without_a_path_has_conversations_too(
    file: Any, chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    """As in notebooks, and in modules that a program makes itself."""
    module = {"__name__": "made", "__file__": file}
    exec(textwrap.dedent(AGENT), module)
    graph = module["compiled"](chat.invoke)
    turn(graph)
    turn(graph)
    assert len(programs(backend)) == 2
    ((name, program_id),) = set(programs(backend))
    assert name == "made"
    assert str(program_id).startswith("made-7-")


def test_the_owner_of_a_frame_need_not_be_a_graph() -> None:
    module: dict[str, Any] = {"__name__": "langgraph.odd", "sys": sys, "graph_at": _origins.graph_at}
    exec("def run(self): return graph_at(sys._getframe())", module)
    for odd in ([], None):
        assert module["run"](odd) is None
        assert _origins.origin_of(odd) is None
