"""Two hundred threads and two thousand tasks of fifty programs at once: nobody is taken for somebody else."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.sdk.in_process import ANSWER, HTTPX

import autellix
from autellix._programs import generators
from autellix._programs.registry import programs
from autellix._programs.thread import ProgramThread

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = 50
THREADS_PER_PROGRAM = 4
TASKS_PER_PROGRAM = 40
BASE_URL = "http://gateway.test:1/v1"


class Network:
    """A transport inside the process: it notes for each call who should have made it, and who did."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str, str]] = []

    def answer(self, request: Any) -> Any:
        body = json.loads(request.content)
        headers = request.headers
        self.calls.append(
            (
                body["messages"][0]["content"],
                headers["x-autellix-program-id"],
                headers["x-autellix-thread-id"],
                headers["x-autellix-call-id"],
            )
        )
        return HTTPX.Response(200, json=ANSWER)

    async def answer_async(self, request: Any) -> Any:
        await asyncio.sleep(random.random() * 0.005)
        return self.answer(request)

    def client(self) -> openai.OpenAI:
        http = HTTPX.Client(transport=HTTPX.MockTransport(self.answer))
        return openai.OpenAI(base_url=BASE_URL, api_key="key", http_client=http, max_retries=0)

    def async_client(self) -> openai.AsyncOpenAI:
        http = HTTPX.AsyncClient(transport=HTTPX.MockTransport(self.answer_async))
        return openai.AsyncOpenAI(base_url=BASE_URL, api_key="key", http_client=http, max_retries=0)


@pytest.fixture
def network(sdk: None) -> Iterator[Network]:
    autellix.configure(BASE_URL)
    yield Network()
    autellix.configure()


class Stress:
    """Programs whose threads, jobs and tasks call, nest, fail and are cancelled."""

    def __init__(self, network: Network) -> None:
        self.client = network.client()
        self.async_client = network.async_client()
        self.errors = Counter[str]()
        self.pool = ThreadPoolExecutor(16)

    def ask(self, program_id: str) -> None:
        messages: Any = [{"role": "user", "content": program_id}]
        self.client.chat.completions.create(model="m", messages=messages)

    async def aask(self, program_id: str) -> None:
        messages: Any = [{"role": "user", "content": program_id}]
        await self.async_client.chat.completions.create(model="m", messages=messages)

    def thread(self, program_id: str, number: int) -> None:
        """Four calls: here, in a nested program, and in a pool that all programs share."""
        try:
            self.ask(program_id)
            with autellix.program("nested", id=f"{program_id}.nested.{number}") as nested:
                self.ask(nested.program_id)
                self.pool.submit(self.ask, nested.program_id).result()
            self.pool.submit(self.ask, program_id).result()
            if number % 2:
                raise KeyError(program_id)
        except KeyError:
            self.errors["KeyError"] += 1

    async def task(self, program_id: str, number: int) -> None:
        """One call; of ten tasks one also nests, one fails, one hangs, and one calls from a thread."""
        await self.aask(program_id)
        if number % 10 == 0:
            async with autellix.program("nested", id=f"{program_id}.task.{number}") as nested:
                await asyncio.gather(self.aask(nested.program_id), self.aask(nested.program_id))
        if number % 10 == 1:
            raise ValueError(program_id)
        if number % 10 == 2:
            await asyncio.Event().wait()
        if number % 10 == 3:
            await asyncio.to_thread(self.ask, program_id)

    async def program(self, name: str) -> None:
        async with autellix.program("stress", id=name):
            threads = [
                threading.Thread(target=self.thread, args=(name, number))
                for number in range(THREADS_PER_PROGRAM)
            ]
            for thread in threads:
                thread.start()
            tasks = [asyncio.create_task(self.task(name, number)) for number in range(TASKS_PER_PROGRAM)]
            hanging = set(tasks[2::10])
            await asyncio.wait(set(tasks) - hanging)
            for task in hanging:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if result is not None:
                    self.errors[type(result).__name__] += 1
            await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    async def run(self) -> None:
        with ThreadPoolExecutor(64) as default, self.pool:
            asyncio.get_running_loop().set_default_executor(default)
            async with self.async_client:
                await asyncio.gather(*(self.program(f"p{number}") for number in range(PROGRAMS)))
        self.client.close()


@pytest.mark.timeout(240)
def test_no_call_is_attributed_to_another_program(network: Network) -> None:
    stress = Stress(network)
    asyncio.run(stress.run())

    tenth = PROGRAMS * TASKS_PER_PROGRAM // 10
    failing_threads = PROGRAMS * THREADS_PER_PROGRAM // 2
    assert stress.errors == {"KeyError": failing_threads, "ValueError": tenth, "CancelledError": tenth}
    assert [call for call in network.calls if call[0] != call[1]] == []
    calls = PROGRAMS * 4 * THREADS_PER_PROGRAM + 13 * tenth
    # A task that hangs may have been cancelled before its call.
    assert calls - tenth <= len(network.calls) <= calls
    assert len({call_id for *_, call_id in network.calls}) == len(network.calls)
    del stress
    assert_nothing_is_left()


def assert_nothing_is_left() -> None:
    """No scope, no thread and no program outlives its code."""
    # First: until it looks again, this thread keeps the last scope that it was in.
    assert autellix.current().is_implicit
    gc.collect()
    assert programs._open == {}
    assert generators.open_scopes == {}
    threads = [thing for thing in gc.get_objects() if type(thing) is ProgramThread]
    assert [thread for thread in threads if not thread.program.is_implicit] == []
