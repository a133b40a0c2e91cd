"""The programs of calls outside of scopes: with nothing but the import, and the same without it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import openai
import pytest
from tests.client import switched_on
from tests.redis_server import RedisServer
from tests.serving import serving_thread
from tests.waiting import wait_until

import autellix
from autellix.testing import RecordingBackend, tool_call
from autellix_backend.assembly import create_app
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.settings import GatewaySettings, Settings, StoreSettings
from autellix_wire.paths import PROGRAMS_PATH

TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ROUNDS = 3
"""Tool calls of an agent; its last call is one more."""


def scripted(body: dict[str, Any]) -> str | dict[str, Any]:
    """Call a tool until there are enough results, where tools are offered; ids are an engine's."""
    results = sum(message["role"] == "tool" for message in body["messages"])
    if not body.get("tools") or results >= ROUNDS:
        return "done"
    message = tool_call(("look", {}))
    message["tool_calls"][0]["id"] = f"chatcmpl-tool-{uuid.uuid4().hex}"
    return message


def result_of(call: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": "seen"}


class Cluster:
    """Gateways before a scripted engine, and a client of all of them in turn."""

    def __init__(self, urls: list[str], engine: RecordingBackend) -> None:
        self.urls, self.engine = urls, engine
        self.clients = [openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) for url in urls]
        self._turns = 0

    def ask(self, messages: list[Any], **fields: Any) -> Any:
        """Make a call at the next gateway; return the answer's message."""
        self._turns += 1
        client = self.clients[self._turns % len(self.clients)]
        answer = client.chat.completions.create(model="recording", messages=messages, **fields)
        return answer.choices[0].message

    def agent(self, task: str, tool: Callable[[], Any] = lambda: None) -> str:
        """Run an agent with a tool to its end."""
        messages: list[Any] = [{"role": "user", "content": task}]
        while (message := self.ask(messages, tools=[TOOL])).tool_calls:
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                tool()
                messages.append(result_of(call))
        return str(message.content)

    def prompt(self, text: str) -> str:
        """Ask one question."""
        return str(self.ask([{"role": "user", "content": text}]).content)

    def chat(self, first: str, turns: int = 3) -> None:
        """Hold a conversation without tools."""
        messages: list[Any] = [{"role": "user", "content": first}]
        for _ in range(turns):
            message = self.ask(messages)
            messages += [message.model_dump(exclude_none=True), {"role": "user", "content": "go on"}]

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.urls[0] + path) as response:
            return json.load(response)

    def programs(self) -> list[dict[str, Any]]:
        """Return the programs with their finished calls, once none is open."""
        wait_until(lambda: not any(each["active_calls"] for each in self._get(PROGRAMS_PATH)["programs"]))
        listed = self._get(PROGRAMS_PATH)["programs"]
        return [self._get(f"{PROGRAMS_PATH}/{each['program_id']}") for each in listed]

    def sizes(self) -> list[int]:
        """Return the number of calls of each program."""
        return sorted(program["finished_calls"] for program in self.programs())


class Start(Protocol):
    """Starts a cluster; without the client, the code under test is the same."""

    def __call__(
        self, *, has_client: bool = True, policy: str = "plas"
    ) -> contextlib.AbstractContextManager[Cluster]: ...


@pytest.fixture(params=["one gateway", "two gateways"])
def start(request: pytest.FixtureRequest) -> Start:
    prefix = f"implicit-{uuid.uuid4().hex}"
    server: RedisServer | None = None
    if request.param == "two gateways":
        server = request.getfixturevalue("redis_server")

    @contextlib.contextmanager
    def started(*, has_client: bool = True, policy: str = "plas") -> Iterator[Cluster]:
        store = (
            StoreSettings(url=server.url, key_prefix=prefix, timeout_ms=10_000) if server else StoreSettings()
        )
        # Gateways of one table share it, which `autellix config check` asks for.
        gateway = GatewaySettings(token_secret="a secret of all gateways")
        settings = Settings(gateway=gateway, store=store, scheduler=SchedulerConfig(policy=policy))
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(RecordingBackend(answer=scripted, is_autellix=False))
            urls = []
            for _ in range(2 if server else 1):
                app = create_app(settings, RemoteEngine(f"http://127.0.0.1:{engine.port}"))
                urls.append(stack.enter_context(serving_thread(app)))
            if has_client:
                stack.enter_context(switched_on())
                autellix.configure(urls)
            cluster = Cluster(urls, engine)
            for client in cluster.clients:
                stack.callback(client.close)
            yield cluster

    return started


def in_threads(jobs: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_pool(jobs: list[Callable[[], Any]]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: job(), jobs))


def in_tasks(jobs: list[Callable[[], Any]]) -> None:
    async def run() -> None:
        await asyncio.gather(*(asyncio.to_thread(job) for job in jobs))

    asyncio.run(run())


def in_turn(jobs: list[Callable[[], Any]]) -> None:
    for job in jobs:
        job()


def made_as(call: dict[str, Any]) -> int:
    """Return the number of a call at its client; the clocks of two gateways differ."""
    return int(call["call_id"].rpartition("-")[2])


def strangers(programs: list[dict[str, Any]]) -> list[str]:
    """Return the parents that are calls of other programs, or of none."""
    return [
        parent
        for program in programs
        for call in program["calls"]
        for parent in call["parents"] or ()
        if parent not in {each["call_id"] for each in program["calls"]}
    ]


@pytest.mark.parametrize("run", [in_threads, in_a_pool, in_tasks, in_turn])
def test_agents_are_programs_as_without_the_client(
    start: Start, run: Callable[[list[Callable[[], Any]]], None]
) -> None:
    """At once and one after the other, with the same prompt: no program has another one's call."""
    for has_client in (True, False):
        with start(has_client=has_client) as cluster:
            run([lambda: cluster.agent("the same task")] * 5)
            programs = cluster.programs()
            assert [each["finished_calls"] for each in programs] == [ROUNDS + 1] * 5
            assert strangers(programs) == []
            if has_client:
                roots = [[call for call in each["calls"] if not call["parents"]] for each in programs]
                assert [len(root) for root in roots] == [1] * 5
                assert not any(each["flags"] for each in programs)


def test_streams_in_tasks_are_programs_too(start: Start) -> None:
    async def agent(url: str) -> None:
        messages: list[Any] = [{"role": "user", "content": "the same task"}]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            while True:
                request = client.chat.completions.stream(model="recording", messages=messages, tools=[TOOL])
                async with request as stream:
                    message = (await stream.get_final_completion()).choices[0].message
                if not message.tool_calls:
                    return
                messages.append(message.model_dump(exclude={"parsed"}, exclude_none=True))
                messages += [result_of(call) for call in message.tool_calls]

    async def run(urls: list[str]) -> None:
        await asyncio.gather(*(agent(urls[number % len(urls)]) for number in range(6)))

    with start() as cluster:
        asyncio.run(run(cluster.urls))
        programs = cluster.programs()
        assert [each["finished_calls"] for each in programs] == [ROUNDS + 1] * 6
        assert strangers(programs) == []


def test_twenty_runs_with_the_same_prompts_are_never_merged(start: Start) -> None:
    with start() as cluster:
        in_threads([lambda: cluster.agent("the same task")] * 20)
        assert cluster.sizes() == [ROUNDS + 1] * 20


def test_a_pipeline_of_prompts_is_one_program(start: Start) -> None:
    with start() as cluster:
        for step in range(4):
            cluster.prompt(f"step {step}")
        [program] = cluster.programs()
        first, *others = sorted(program["calls"], key=made_as)
        # The process has made calls in the tests before, of which this gateway knows nothing.
        assert not first["parents"]
        assert [call["parents"] for call in others] == [[call["call_id"]] for call in [first, *others][:-1]]
        assert program["flags"] == ["implicit"]


def test_a_map_reduce_of_prompts_is_one_program(start: Start) -> None:
    with start() as cluster:
        cluster.prompt("plan")
        in_a_pool([partial(cluster.prompt, f"map {part}") for part in range(5)])
        cluster.prompt("reduce")
        [program] = cluster.programs()
        plan, *maps, reduce = sorted(program["calls"], key=made_as)
        assert [call["parents"] for call in maps] == [[plan["call_id"]]] * 5
        assert sorted(reduce["parents"]) == sorted(call["call_id"] for call in maps)


@pytest.mark.parametrize("is_inline", [True, False])
def test_sub_agents_are_threads_of_their_orchestrator(start: Start, is_inline: bool) -> None:
    """Two after each other in each tool, in line or in branches."""

    def tool(cluster: Cluster) -> None:
        jobs: list[Callable[[], Any]] = [
            lambda: cluster.agent("sub-agent"),
            lambda: cluster.agent("sub-agent"),
            lambda: cluster.prompt("summarize"),
        ]
        (in_turn if is_inline else in_threads)(jobs)

    with start() as cluster:
        cluster.agent("orchestrate", lambda: tool(cluster))
        [program] = cluster.programs()
        assert program["finished_calls"] == (ROUNDS + 1) + ROUNDS * (2 * (ROUNDS + 1) + 1)
        assert strangers([program]) == []
        threads = Counter(call["thread_id"] for call in program["calls"])
        if is_inline:
            # The orchestrator, and for each tool call two sub-agents and a prompt.
            assert sorted(threads.values()) == sorted([ROUNDS + 1, *[ROUNDS + 1, ROUNDS + 1, 1] * ROUNDS])
        else:
            # Threads of one process share a few numbers, one after the other.
            assert ROUNDS + 1 in threads.values()
            assert len(threads) >= 4


def test_a_conversation_takes_its_first_call_with_it(start: Start) -> None:
    """It began among single prompts; its service and its calls move, and the prompts keep theirs."""
    with start() as cluster:
        cluster.prompt("plan")
        in_threads([lambda: cluster.chat("the same question")] * 3)
        programs = cluster.programs()
        implicit = [each for each in programs if each["flags"] == ["implicit"]]
        assert [each["finished_calls"] for each in implicit] == [1]
        chats = [each for each in programs if not each["flags"]]
        assert [each["finished_calls"] for each in chats] == [3] * 3
        assert strangers(chats) == []
        for each in programs:
            spent = sum(call["service_s"] for call in each["calls"])
            assert each["service_s"] == pytest.approx(spent)
            assert each["total_service_s"] == pytest.approx(spent)
        # The answers of the scripted engine state one token each.
        assert sum(each["output_tokens"] for each in programs) == len(cluster.engine.recorded)


def test_a_process_whose_calls_have_all_moved_has_no_program_left(start: Start) -> None:
    with start() as cluster:
        cluster.chat("a question")
        assert cluster.sizes() == [3]


def test_a_scope_always_decides(start: Start) -> None:
    with start() as cluster:
        with autellix.program("mine", id="mine"):
            in_threads([lambda: cluster.agent("the same task")] * 3)
        cluster.agent("outside")
        sizes = {each["program_id"]: each["finished_calls"] for each in cluster.programs()}
        assert sizes.pop("mine", None) in (None, 3 * (ROUNDS + 1))
        assert list(sizes.values()) == [ROUNDS + 1]
