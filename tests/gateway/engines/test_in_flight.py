"""The bound on calls in flight at a server without our scheduler: it is learned; further calls wait here."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.gateway.engines.rig import GatewayRig
from tests.ports import free_port
from tests.serving import listening
from tests.waiting import until

from autellix_backend.assembly import create_app
from autellix_backend.cli.announcements import ready_line
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.probe import QueueLengths
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.engines import in_flight
from autellix_backend.gateway.engines.in_flight import READINGS, LearnedBound
from autellix_backend.settings import EngineSettings, Settings

SLOTS = 4
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}


# -- The rule, before a simulated engine with so many slots that always has enough calls.


@dataclass(slots=True)
class Client:
    """One gateway's calls at an engine, of which it always has enough."""

    calls: int
    bound: LearnedBound


def settle(slots: int, *clients: Client, others: int = 0, readings: int = 20) -> None:
    """Let gateways read an engine's queue; each sends what its bound allows, and keeps what it has sent."""
    for _ in range(readings):
        total = sum(client.calls for client in clients) + others
        seen = QueueLengths(running=min(slots, total), waiting=max(0, total - slots))
        for client in clients:
            client.bound.observe(seen, client.calls, is_held=client.calls >= client.bound.calls)
        for client in clients:
            client.calls = int(min(client.bound.calls, 10 * slots))


@pytest.mark.parametrize("slots", [1, 4, 64, 256])
def test_the_bound_is_the_batch_and_a_few_calls_that_wait(slots: int) -> None:
    client = Client(10 * slots, LearnedBound())
    settle(slots, client)
    assert client.bound.calls == slots + max(2, slots // 16)
    assert client.bound.running == slots


def test_calls_that_were_sent_before_do_not_lower_the_bound_further() -> None:
    """They may take minutes to leave."""
    bound = LearnedBound()
    for sent in (*[40] * 8, *range(40, 5, -1)):
        bound.observe(QueueLengths(running=4, waiting=sent - 4), sent, is_held=True)
    assert bound.calls == 4 + 2


@pytest.mark.parametrize(("waiting", "expected"), [(2, math.inf), (3, 6)])
def test_only_calls_beyond_the_spare_ones_lower_the_bound(waiting: int, expected: float) -> None:
    bound = LearnedBound()
    for _ in range(READINGS):
        bound.observe(QueueLengths(running=4, waiting=waiting), 4 + waiting, is_held=False)
    assert bound.calls == expected


@pytest.mark.parametrize(("waiting", "is_shared"), [(2, False), (3, True)])
def test_calls_of_others_count_once_more_than_the_spare_ones_wait(waiting: int, is_shared: bool) -> None:
    """Up to those, each call there gets a slot as soon as one is free."""
    bound = LearnedBound()
    bound.observe(QueueLengths(running=4, waiting=waiting), 1, is_held=True)
    assert bound.is_shared is is_shared


@pytest.mark.parametrize(("in_flight", "is_shared"), [(2, False), (1, True)])
def test_there_is_no_bound_beside_more_than_twice_as_many_calls_of_others(
    in_flight: int, is_shared: bool
) -> None:
    bound = LearnedBound()
    bound.observe(QueueLengths(running=3, waiting=3), in_flight, is_held=True)
    assert bound.is_shared is is_shared


def test_an_engine_that_runs_dry_now_and_then_gets_more_calls() -> None:
    """Where the way to it is slow, two calls that wait there are soon gone."""
    client = Client(40, LearnedBound())
    settle(4, client)
    dry = QueueLengths(running=3, waiting=0)
    for reading in (dry, QueueLengths(running=4, waiting=3)) * 4:
        client.bound.observe(reading, client.calls, is_held=True)
    assert client.bound.calls == 6 + 4


def test_without_a_queue_in_the_engine_there_is_no_bound() -> None:
    bound = LearnedBound()
    for running in (3, 17, 200):
        bound.observe(QueueLengths(running=running, waiting=0), running, is_held=False)
    assert bound.calls == math.inf


def test_calls_that_wait_for_their_prefill_only_are_no_sign_of_a_full_batch() -> None:
    bound = LearnedBound()
    bound.observe(QueueLengths(running=10, waiting=80), 90, is_held=False)
    bound.observe(QueueLengths(running=60, waiting=30), 90, is_held=False)
    bound.observe(QueueLengths(running=90, waiting=0), 90, is_held=False)
    assert bound.calls == math.inf


def test_a_bound_that_is_too_low_reaches_the_batch_within_a_few_seconds() -> None:
    client = Client(40, LearnedBound())
    settle(4, client)
    assert client.calls == 6
    settle(256, client, readings=9)
    assert client.calls >= 256
    settle(256, client)
    assert 256 <= client.calls <= 256 + 16


def test_a_bound_does_not_grow_while_no_call_waits_for_it() -> None:
    client = Client(40, LearnedBound())
    settle(4, client)
    client.bound.observe(QueueLengths(running=2, waiting=0), 2, is_held=False)
    assert client.bound.calls == 6


def test_gateways_share_a_batch_and_keep_it_full() -> None:
    clients = [Client(640, LearnedBound()) for _ in range(3)]
    settle(64, *clients, readings=60)
    assert 64 <= sum(client.calls for client in clients) <= 3 * 64
    assert min(client.calls for client in clients) >= 8


def test_there_is_no_bound_while_most_calls_are_those_of_others() -> None:
    client = Client(40, LearnedBound())
    settle(4, client)
    settle(4, client, others=500, readings=1)
    assert client.bound.is_shared
    assert client.bound.calls == math.inf


def test_an_engine_that_pauses_teaches_nothing() -> None:
    client = Client(40, LearnedBound())
    settle(0, client)
    assert client.bound.calls == math.inf


# -- The gateway before a server with slots.


class PlainServer:
    """A server that calls itself vLLM: a few slots, a queue in order of arrival, and metrics."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.slots = asyncio.Semaphore(SLOTS)
        self.states_queue = True
        self.running = 0
        self.waiting = 0
        self.most_waiting_lately = 0
        self.cached_tokens = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post(CHAT, self._chat)
        return app

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        gauges = {"vllm:num_requests_running": self.running, "vllm:num_requests_waiting": self.waiting}
        lines = [f'{name}{{engine="0",model_name="m"}} {float(value)}' for name, value in gauges.items()]
        return web.Response(text="\n".join([*(lines if self.states_queue else ()), ""]))

    async def _chat(self, _request: web.Request) -> web.Response:
        self.waiting += 1
        async with self.slots:
            self.waiting -= 1
            self.running += 1
            try:
                await self.gate.wait()
                await asyncio.sleep(0.02)
            finally:
                self.running -= 1
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        usage = {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        return web.json_response(
            {"id": "a", "object": "chat.completion", "choices": [choice], "usage": usage}
        )


class PlainRig(GatewayRig):
    """A gateway before a plain server."""

    def __init__(self, server: PlainServer, app: Any, url: str, client: aiohttp.ClientSession) -> None:
        super().__init__(app, url, client)
        self.server = server

    async def chat(self, program: str, text: str = "hello there") -> str:
        headers = {"X-Autellix-Program-ID": program}
        body = BODY | {"messages": [{"role": "user", "content": text}]}
        async with self.client.post(self.url + CHAT, json=body, headers=headers) as response:
            assert response.status == 200
            return program


@pytest.fixture(autouse=True)
def quick_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "PERIOD_S", 0.02)


@asynccontextmanager
async def gateway(server: PlainServer, policy: str = "plas", **settings: Any) -> AsyncIterator[PlainRig]:
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = RemoteEngine(f"http://127.0.0.1:{runner.addresses[0][1]}", report_port=free_port())
    try:
        await engine.start()
        app = create_app(
            Settings(
                engine=EngineSettings(urls=(engine.base_url,), **settings),
                scheduler=SchedulerConfig(policy=policy, bounds=(0.01, 1.0)),
            ),
            engine,
        )
        async with listening(app) as url, aiohttp.ClientSession() as client:
            rig = PlainRig(server, app, url, client)
            await until(lambda: rig.handle.reporting.state == "absent")
            yield rig
    finally:
        await runner.cleanup()


async def test_calls_wait_in_the_gateway_once_it_has_learned_the_bound() -> None:
    server = PlainServer()
    async with gateway(server) as rig:
        row = await rig.engine()
        assert (row["ordered_by"], row["max_in_flight"]) == ("gateway", None)
        assert "ordered by the gateway (plas) once calls wait there" in row["scheduling"]
        first = [asyncio.create_task(rig.chat(f"first-{number}")) for number in range(16)]
        await until(lambda: rig.handle.max_in_flight == SLOTS + 2)
        row = await rig.engine()
        assert row["scheduling"].endswith(
            "ordered by the gateway (plas), at most 6 calls in flight (learned); usage is estimated from "
            "tokens"
        )
        assert (row["ordered_by"], row["max_in_flight"]) == ("gateway", 6)
        ready = await rig.get("/readyz")
        assert (ready["status"], ready["ordered_by"]) == ("ready", {"remote-0": "gateway"})
        second = [asyncio.create_task(rig.chat(f"second-{number}")) for number in range(8)]
        # Of the first, some may wait too: the bound is learned while they arrive.
        await until(lambda: len(rig.handle.queue) >= 8)
        why = await rig.get("/autellix/v1/programs/second-3/why")
        assert "the calls in flight at remote-0 have reached the limit of 6" in why["calls"][0]["text"]
        server.gate.set()
        await asyncio.gather(*first)
        server.gate.clear()
        # Many: the bound may have grown meanwhile, and all of the second may have been answered.
        third = [asyncio.create_task(rig.chat(f"third-{number}")) for number in range(40)]
        await until(lambda: len(rig.handle.queue) >= 8)
        server.gate.set()
        await asyncio.gather(*second, *third)


async def test_the_gateways_order_applies_to_the_calls_that_wait_for_a_learned_bound() -> None:
    server = PlainServer()
    async with gateway(server) as rig:
        server.gate.set()
        for _ in range(2):
            await rig.chat("old")
        server.gate.clear()
        fill = [asyncio.create_task(rig.chat(f"fill-{number}")) for number in range(16)]
        await until(lambda: rig.handle.max_in_flight == SLOTS + 2)
        late: list[asyncio.Task[str]] = []
        waiting = len(rig.handle.queue)
        for program in ("old", "old", "new"):
            late.append(asyncio.create_task(rig.chat(program)))
            await until(lambda: len(rig.handle.queue) == waiting + len(late))
        machine = rig.handle.queue.ordering._machine
        first = next(call for call in machine if call.program_id in {"old", "new"})
        assert first.program_id == "new"
        server.gate.set()
        await asyncio.gather(*fill, *late)


async def test_what_programs_share_is_learned_from_the_first_call_of_each() -> None:
    server = PlainServer()
    server.gate.set()
    async with gateway(server) as rig:
        tools = "a list of tools, which several programs have. " * 100
        lengths = rig.handle.queue.ordering._prefix_lengths
        for program, cached_tokens, known in (("p", 0, 0), ("q", 2, 2), ("q", 3, 2)):
            server.cached_tokens = cached_tokens
            await rig.chat(program, tools + program)
            (prefix,) = set(rig.handle.queue.ordering._prefixes.values())
            assert lengths.tokens(prefix) == known
        server.cached_tokens = 1
        await rig.chat("r", "short")
        assert "r" not in rig.handle.queue.ordering._prefixes


async def test_each_way_of_ordering_is_announced_once() -> None:
    server = PlainServer()
    async with gateway(server) as rig:
        said: list[str] = []
        rig.app.state.gateway.pool.subscribe_links(lambda handle: said.append(handle.reporting.text))
        for _ in range(3):
            calls = [asyncio.create_task(rig.chat(f"p{number}")) for number in range(16)]
            await until(lambda: rig.handle.max_in_flight is not None)
            server.waiting += 500
            await until(lambda: rig.handle.max_in_flight is None)
            server.waiting -= 500
            await until(lambda: rig.handle.max_in_flight is not None)
            server.gate.set()
            await asyncio.gather(*calls)
            server.gate.clear()
        assert ["(learned)" in text for text in said] == [True, False]
        assert "most calls there come from elsewhere" in said[1]


async def test_a_set_bound_is_kept() -> None:
    server = PlainServer()
    async with gateway(server, max_in_flight=2) as rig:
        calls = [asyncio.create_task(rig.chat(f"p{number}")) for number in range(6)]
        await until(lambda: server.running == 2 and len(rig.handle.queue) == 4)
        row = await rig.engine()
        assert "ordered by the gateway (plas), at most 2 calls in flight; usage" in row["scheduling"]
        server.gate.set()
        await asyncio.gather(*calls)
        assert rig.handle.max_in_flight == 2


async def test_the_ready_line_says_where_the_policy_applies() -> None:
    """In the gateway where a bound is set or can be learned; nowhere else."""
    for states_queue, expected in ((True, "(policy plas, in the gateway);"), (False, "(policy none: the")):
        server = PlainServer()
        server.states_queue = states_queue
        async with gateway(server) as rig:
            parts = rig.app.state.gateway
            with socket.create_server(("127.0.0.1", 0)) as listener:
                assert expected in ready_line(parts.settings, parts.pool, listener)


async def test_a_server_that_states_no_queue_lengths_is_said_to_order_its_calls() -> None:
    server = PlainServer()
    server.states_queue = False
    async with gateway(server) as rig:
        row = await rig.engine()
        assert (
            "no bound in flight: the engine's own order applies; set engine.max_in_flight"
            in row["scheduling"]
        )
        assert (row["ordered_by"], row["max_in_flight"]) == ("engine", None)
        assert (await rig.get("/readyz"))["ordered_by"] == {"remote-0": "engine"}
        calls = [asyncio.create_task(rig.chat(f"p{number}")) for number in range(16)]
        await until(lambda: server.waiting == 16 - SLOTS)
        server.gate.set()
        await asyncio.gather(*calls)


async def test_another_server_in_its_place_is_learned_from_the_start() -> None:
    server = PlainServer()
    async with gateway(server) as rig:
        calls = [asyncio.create_task(rig.chat(f"p{number}")) for number in range(16)]
        await until(lambda: rig.handle.max_in_flight is not None)
        server.gate.set()
        await asyncio.gather(*calls)
        rig.handle._forget()
        assert rig.handle.max_in_flight is None
