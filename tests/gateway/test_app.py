"""What the running app does by itself: reaping, and its end."""

from __future__ import annotations

import asyncio
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine, Fault
from tests.waiting import PATIENCE_S, until

from autellix_backend.assembly import create_app
from autellix_backend.console import wiring as console_wiring
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway import wiring
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.settings import ObserveSettings, Settings
from autellix_backend.stores.memory import MemoryStore

CHAT = "/v1/chat/completions"
SESSIONS = "/autellix/v1/sessions"
PROGRAMS = "/autellix/v1/programs"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "REAP_PERIOD_S", 0.02)
    monkeypatch.setattr(console_wiring, "STRAGGLER_PERIOD_S", 0.02)


async def metrics_of(rig: Any) -> str:
    async with rig.client.get(rig.url + "/metrics") as response:
        text: str = await response.text()
        return text


async def test_an_idle_program_is_removed_while_the_app_runs(serve: Any, wait_until: Any) -> None:
    async with serve(program_idle_s=1.0) as rig:
        await rig.chat({"X-Autellix-Program-ID": "p"})
        assert (await rig.get(PROGRAMS + "/p"))[0] == 200

        async def is_reaped() -> bool:
            return 'autellix_reaped_total{kind="program"} 1.0' in await metrics_of(rig)

        # It is counted when the round of the reaper is over.
        await until(is_reaped)
        assert (await rig.get(PROGRAMS + "/p"))[0] == 404


class Spans:
    """A tracer that keeps what it was told."""

    def __init__(self) -> None:
        self.begun: dict[str, tuple[str, str | None]] = {}
        self.ended: dict[str, float] = {}
        self.calls = 0

    def begin_program(self, program_id: str, shown_id: str, name: str | None, began_at_s: float) -> None:
        self.begun.setdefault(program_id, (shown_id, name))

    def take(self, _: object) -> None:
        self.calls += 1

    def end_program(self, program_id: str, ended_at_s: float, parts_s: dict[str, float]) -> None:
        self.ended[program_id] = sum(parts_s.values())

    def close(self) -> None:
        pass


async def test_a_program_that_ended_is_counted_and_its_span_is_closed(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = Spans()
    monkeypatch.setattr(wiring, "make_tracer", lambda *_: spans)
    async with serve(observe=ObserveSettings(program_names=("react",))) as rig:
        program = {"X-Autellix-Program-ID": "p", "X-Autellix-Program-Name": "react"}
        await rig.chat(program)
        assert (set(spans.begun), spans.ended) == ({"p"}, {})
        await rig.chat({**program, "X-Autellix-Final": "true"})
        metrics = await metrics_of(rig)

    assert 'autellix_program_duration_seconds_count{name="react"} 1.0' in metrics
    assert 'autellix_program_token_seconds_count{name="react"} 1.0' in metrics
    assert (spans.begun, spans.calls) == ({"p": ("p", "react")}, 2)
    assert spans.ended.keys() == {"p"} and spans.ended["p"] > 0


async def test_a_program_with_a_running_call_is_not_idle(serve: Any) -> None:
    async with serve(program_idle_s=0.1) as rig:
        rig.engine.behaviour = FakeBehaviour(fault=Fault.HANG)
        call = asyncio.create_task(rig.chat({"X-Autellix-Program-ID": "busy"}))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        rig.engine.behaviour = FakeBehaviour()
        await rig.chat({"X-Autellix-Program-ID": "idle"})

        async def has_left() -> bool:
            return bool((await rig.get(PROGRAMS + "/idle"))[0] == 404)

        await until(has_left)
        assert (await rig.get(PROGRAMS + "/busy"))[1]["active_calls"] == 1
        call.cancel()


async def test_a_silent_session_is_removed_with_its_programs(serve: Any) -> None:
    async with serve(session_ttl_s=1.2) as rig:
        async with rig.client.post(rig.url + SESSIONS, json={"session_id": "s"}) as response:
            assert response.status == 201
        await rig.chat({"X-Autellix-Session-ID": "s", "X-Autellix-Program-ID": "p"})
        async with asyncio.timeout(PATIENCE_S):
            while (await rig.store.counts()).sessions:  # noqa: ASYNC110 - the store tells when asked
                await asyncio.sleep(0.02)
        assert (await rig.get(PROGRAMS))[1] == {"programs": [], "has_more": False, "next": None}
        async with rig.client.post(rig.url + SESSIONS + "/s/heartbeat") as response:
            assert response.status == 404
        assert 'autellix_reaped_total{kind="session"} 1.0' in await metrics_of(rig)


@pytest.mark.parametrize("is_streaming", [False, True])
def test_the_end_of_the_app_aborts_calls_in_flight(listen: Any, wait_until: Any, is_streaming: bool) -> None:
    async def main(folder: Path) -> None:
        behaviour = FakeBehaviour(output_tokens=10_000, token_delay_s=0.01)
        engine = FakeEngine(behaviour, report_address=f"ipc://{folder}/reports")
        await engine.start()
        store = MemoryStore(make_policy("plas"), program_idle_s=60.0, session_ttl_s=60.0)
        body = {**HELLO, "stream": is_streaming}
        headers = {"X-Autellix-Program-ID": "p"}
        async with aiohttp.ClientSession() as client:
            async with (
                asyncio.timeout(PATIENCE_S),
                listen(create_app(Settings(), engine, store=store)) as url,
            ):

                async def call() -> tuple[int, bytes]:
                    async with client.post(url + CHAT, json=body, headers=headers) as response:
                        return response.status, await response.read()

                task = asyncio.create_task(call())
                await wait_until(lambda: len(engine.calls) == 1)
            status, content = await task
        await wait_until(lambda: engine.aborted_calls == 1)
        await engine.stop()
        assert status == (200 if is_streaming else 503)
        assert b'"code":"shutting_down"' in content
        assert b"shutting down" in content
        assert (await store.counts()).active_calls == 0
        program = await store.program("p")
        assert program is not None
        (end,) = [view.end for view in program.calls]
        # The account of the abort came in time, although the gateway was ending.
        assert end is not None and (end.outcome, end.is_estimated) == ("aborted", False)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


@pytest.mark.parametrize("path", ["/health", "/nowhere", SESSIONS, CHAT])
async def test_every_response_is_marked(serve: Any, path: str) -> None:
    """Also that to a request that is refused: clients know the gateway by it."""
    async with serve() as rig, rig.client.get(rig.url + path) as response:
        assert response.headers.getall("X-Autellix-Version") == [metadata.version("autellix")]


async def test_a_base_url_without_its_last_part_is_named(serve: Any) -> None:
    """The client's own address of the gateway needs no /v1, and an OpenAI library's does."""
    body = {"model": "m", "messages": []}
    async with serve() as rig:
        for path, is_known in (("/chat/completions", True), ("/responses", True), ("/nowhere", False)):
            async with rig.client.post(rig.url + path, json=body) as response:
                message = (await response.json())["error"]["message"]
                assert response.status == 404
                known = f"; expected /v1{path}: a client's base URL ends in /v1"
                assert message == f"POST {path}: Not Found{known * is_known}"


async def test_a_base_url_with_its_last_part_twice_is_named(serve: Any) -> None:
    """Anthropic's client adds /v1 itself."""
    async with serve() as rig:
        for path, is_known in (("/v1/messages", True), ("/v1/nowhere", False)):
            async with rig.client.post(f"{rig.url}/v1{path}", json={}) as response:
                message = (await response.json())["error"]["message"]
                assert response.status == 404
                known = f"; expected {path}: Anthropic's client adds /v1 to its base URL itself"
                assert message == f"POST /v1{path}: Not Found{known * is_known}"


async def test_a_crash_on_a_control_endpoint_is_marked(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: GatewayMetrics) -> bytes:
        raise RuntimeError

    monkeypatch.setattr(GatewayMetrics, "render", crash)
    async with serve() as rig, rig.client.get(rig.url + "/metrics") as response:
        assert response.status == 500
        assert response.headers.getall("X-Autellix-Version") == [metadata.version("autellix")]


async def test_clients_that_ask_as_they_ask_vllm_get_its_answers(serve: Any) -> None:
    asked = (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"))

    async def statuses(rig: Any) -> list[tuple[int, bool]]:
        answers = []
        for method, path in asked:
            async with rig.client.request(method, rig.url + path) as response:
                answers.append((response.status, not await response.read()))
        return answers

    async with serve(engine_settings={"max_restarts": 0}) as rig:
        assert await statuses(rig) == [(200, True)] * 3
        async with rig.client.get(rig.url + "/version") as response:
            assert await response.json() == {"method": "GET", "target": "/version"}
        await rig.engine.kill()
        async with asyncio.timeout(PATIENCE_S):
            while (await statuses(rig))[0][0] != 503:  # noqa: ASYNC110 - it tells when asked
                await asyncio.sleep(0.02)
        assert await statuses(rig) == [(503, False)] * 3
