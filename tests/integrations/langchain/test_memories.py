"""A conversation is its memory: which graphs, savers and processes continue one, and what ends it."""

from __future__ import annotations

import gc
import importlib.util
import json
import operator
import os
import socket
import sqlite3
import subprocess
import sys
import textwrap
import types
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from tests.waiting import PATIENCE_S, wait_until

from autellix.testing import RecordingBackend

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from autellix.integration import ids
from autellix_langchain import _memories
from autellix_langchain._memories import _database_of, number_of

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI
    from tests.redis_server import RedisServer

NEEDS_GATEWAY = pytest.mark.skipif(
    importlib.util.find_spec("autellix_backend") is None, reason="the client alone is installed"
)


class Parts(TypedDict, total=False):
    parts: Annotated[list[str], operator.add]


class WithConnection(InMemorySaver):
    """A saver that shows its connection, as those for SQLite and Postgres do."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self.conn = connection


def graph_of(chat: ChatOpenAI, saver: Any = None) -> Any:
    def node(state: Parts) -> Parts:
        return {"parts": [str(chat.invoke("hello").content)]}

    return StateGraph(Parts).add_node("node", node).add_edge(START, "node").compile(saver, name="chat")


def turn(graph: Any, thread_id: str = "1", **configurable: Any) -> None:
    graph.invoke({"parts": []}, {"configurable": {"thread_id": thread_id, **configurable}})


def program_ids(backend: RecordingBackend) -> list[str | None]:
    return [call.program_id for call in backend.recorded]


@pytest.mark.parametrize("make_saver", [InMemorySaver, lambda: None], ids=["in memory", "none"])
def test_graphs_made_for_each_problem_share_no_conversation(
    chat: ChatOpenAI, backend: RecordingBackend, make_saver: Callable[[], Any]
) -> None:
    """As in evaluations, where every problem has the thread "1"."""

    def solve(_: int) -> None:
        graph = graph_of(chat, make_saver())
        for _ in range(2):
            turn(graph)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(solve, range(3)))
    found = program_ids(backend)
    assert len(found) == 6
    assert sorted(map(found.count, set(found))) == [2, 2, 2]


def test_graphs_with_one_saver_share_its_conversations(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """As where a server compiles its graph for each request."""
    saver = InMemorySaver()
    for _ in range(2):
        turn(graph_of(chat, saver))
    turn(graph_of(chat), __pregel_checkpointer=saver)
    turn(graph_of(chat, InMemorySaver()), __pregel_checkpointer=saver)
    assert len(program_ids(backend)) == 4
    assert len(set(program_ids(backend))) == 1


def test_an_object_at_a_former_address_is_another_memory() -> None:
    addresses, numbers = set(), set()
    for _ in range(200):
        saver = InMemorySaver()
        addresses.add(id(saver))
        numbers.add(number_of(saver))
        del saver
        gc.collect(0)
    assert len(numbers) == 200
    assert len(addresses) < 200, "no address came again: this shows nothing"


def test_numbers_go_with_their_objects() -> None:
    kept = InMemorySaver()
    # What other tests have left.
    gc.collect()
    before = number_of(kept), len(_memories._numbered)
    number_of(InMemorySaver())
    gc.collect()
    assert (number_of(kept), len(_memories._numbered)) == before


def test_a_memory_that_cannot_be_told_again_is_never_the_same() -> None:
    assert number_of({}) != number_of({})


def test_a_copy_of_a_process_has_memories_of_its_own(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """After a fork parent and child write different things into what was one object."""
    graph = graph_of(chat, InMemorySaver())
    turn(graph)
    # As a forked child does.
    ids.renew()
    turn(graph)
    assert len(set(program_ids(backend))) == 2


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[str], sqlite3.Connection]]:
    with ExitStack() as stack:

        def connect(name: str) -> sqlite3.Connection:
            path = name if name == ":memory:" else str(tmp_path / name)
            connection = sqlite3.connect(path, check_same_thread=False)
            stack.callback(connection.close)
            connection.row_factory = lambda *_: {}
            return connection

        yield connect


def test_savers_of_one_file_are_one_memory(
    chat: ChatOpenAI, backend: RecordingBackend, connect: Callable[[str], sqlite3.Connection]
) -> None:
    for name in ("one.db", "one.db", "two.db", ":memory:", ":memory:"):
        turn(graph_of(chat, WithConnection(connect(name))))
    one, again, *others = program_ids(backend)
    assert one == again
    assert len({one, *others}) == 4


def test_a_database_that_cannot_be_read_is_its_savers_own(
    chat: ChatOpenAI, backend: RecordingBackend, connect: Callable[[str], sqlite3.Connection]
) -> None:
    connection = connect("closed.db")
    connection.close()
    for _ in range(2):
        turn(graph_of(chat, WithConnection(connection)))
    assert len(set(program_ids(backend))) == 2


def make_postgres(module: str, **attributes: Any) -> Any:
    """Return a saver whose connection looks like one of a package's."""
    kind: Any = type("Connection", (), {**attributes, "__module__": module})
    return WithConnection(kind())


def test_databases_of_postgres_differ_by_server_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their passwords, and not where the place is in the environment."""
    conninfo: Any = types.ModuleType("psycopg.conninfo")
    conninfo.conninfo_to_dict = lambda text, **more: {
        **dict(part.split("=", 1) for part in text.split()),
        **more,
    }
    monkeypatch.setitem(sys.modules, "psycopg.conninfo", conninfo)

    def pool(text: str, **kwargs: Any) -> str | None:
        return _database_of(make_postgres("psycopg_pool.pool", conninfo=text, kwargs=kwargs or None))

    def connection(host: str) -> str | None:
        info = types.SimpleNamespace(host=host, port=5432, dbname="chat", options="")
        return _database_of(make_postgres("psycopg", info=info))

    found = pool("host=db dbname=chat password=secret")
    assert found == pool("host=db password=other", dbname="chat", autocommit=True)
    assert "secret" not in str(found)
    schema = pool("host=db dbname=chat options=-csearch_path=a")
    assert len({found, pool("host=db dbname=mail"), schema, connection("db"), connection("elsewhere")}) == 5
    assert pool("dbname=chat") is pool("host=db") is None

    here = pool("host=localhost dbname=chat"), connection("/run/postgresql")
    monkeypatch.setattr(socket, "gethostname", lambda: "another machine")
    assert here != (pool("host=localhost dbname=chat"), connection("/run/postgresql"))
    assert pool("host=db dbname=chat password=secret") == found


# Processes

SCRIPT = """
    import os, sqlite3, sys
    import autellix
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, MessagesState, StateGraph
    import autellix._sessions.keeper, autellix._sessions.upkeep

    # A busy machine may need longer than the second in which a process sends its ends at the exit.
    autellix._sessions.keeper.EXIT_LIMIT_S = autellix._sessions.upkeep.PATIENCE_S = 60.0

    class FileSaver(InMemorySaver):
        def __init__(self, file):
            super().__init__()
            self.conn = sqlite3.connect(file, check_same_thread=False)

    url = os.environ["AUTELLIX_BASE_URL"] + "/v1"
    model = ChatOpenAI(base_url=url, api_key="k", model="fake", max_retries=0)
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "answer")
    saver = FileSaver(sys.argv[1]) if sys.argv[1:] else InMemorySaver()
    chat = graph.compile(checkpointer=saver, name="chat")
    for line in sys.stdin:
        chat.invoke({"messages": [("user", line)]}, {"configurable": {"thread_id": "1"}})
        print("answered", flush=True)
"""


class Chat:
    """A process that makes a turn of thread "1" when it is asked to."""

    def __init__(self, script: Path, url: str, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "AUTELLIX_BASE_URL": url},
        )

    def turn(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("hello\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "answered\n"

    def exit(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "chat.py"
    path.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    return path


@pytest.fixture(params=["", "redis"], ids=["one gateway", "redis"])
def gateway(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a gateway, with its table in its memory or in Redis."""
    from tests.fakes.engine import FakeBehaviour, FakeEngine
    from tests.serving import serving_thread

    from autellix_backend.assembly import create_app
    from autellix_backend.settings import Settings, StoreSettings

    store = StoreSettings()
    if request.param:
        server: RedisServer = request.getfixturevalue("redis_server")
        store = StoreSettings(url=server.url, key_prefix="memories", timeout_ms=5000)
    engine = FakeEngine(FakeBehaviour())
    with serving_thread(create_app(Settings(store=store), engine), engine) as url:
        yield url


def finished_calls(url: str) -> list[int]:
    """Return how many calls each program has finished, as far as the gateway knows them."""
    with urllib.request.urlopen(f"{url}/autellix/v1/programs") as response:
        return sorted(program["finished_calls"] for program in json.load(response)["programs"])


@NEEDS_GATEWAY
def test_processes_with_memories_of_their_own_do_not_end_each_others_programs(
    script: Path, gateway: str
) -> None:
    short, long, third = (Chat(script, gateway) for _ in range(3))
    for chat in (short, long, third, long):
        chat.turn()
    assert finished_calls(gateway) == [1, 1, 2]
    short.exit()
    third.exit()
    wait_until(lambda: finished_calls(gateway) == [2])
    long.turn()
    assert finished_calls(gateway) == [3]
    long.exit()
    wait_until(lambda: finished_calls(gateway) == [])


@NEEDS_GATEWAY
def test_a_conversation_of_two_processes_ends_with_the_last_of_them(
    script: Path, gateway: str, tmp_path: Path
) -> None:
    first, second = (Chat(script, gateway, str(tmp_path / "saver.db")) for _ in range(2))
    first.turn()
    second.turn()
    assert finished_calls(gateway) == [2]
    first.exit()
    second.turn()
    assert finished_calls(gateway) == [3]
    second.exit()
    wait_until(lambda: finished_calls(gateway) == [])
