"""What sort of server an address has, found by the paths that it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.ports import free_port

from autellix_backend.engines import probe
from autellix_backend.engines.base import EngineKind
from autellix_backend.engines.factory import make_engines
from autellix_backend.engines.probe import CacheFacts, detect_kind, read_cache, read_models
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.settings import AUTO_KIND, ENGINE_KINDS, EngineSettings, Settings, SettingsError

VLLM = {"/health": "", "/version": '{"version": "0.32.0"}'}
SGLANG = {"/health": "", "/get_model_info": '{"model_path": "qwen/qwen2.5-0.5b-instruct"}'}
RENAMED_SGLANG = {"/health": "", "/model_info": '{"model_path": "qwen/qwen2.5-0.5b-instruct"}'}
HOSTED = {"/v1/models": '{"object": "list", "data": []}'}
ODD = {"/health": "", "/version": "1.2", "/model_info": "not JSON"}


@asynccontextmanager
async def answering(answers: dict[str, str]) -> AsyncIterator[str]:
    """Serve texts by path, as JSON."""
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=answers[request.path], content_type="application/json")

    for path in answers:
        app.router.add_get(path, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (VLLM, EngineKind.VLLM),
        (SGLANG, EngineKind.SGLANG),
        (RENAMED_SGLANG, EngineKind.SGLANG),
        (HOSTED, EngineKind.OPENAI),
        (ODD, EngineKind.OPENAI),
    ],
)
async def test_a_remote_engines_kind_is_detected(answers: dict[str, str], kind: EngineKind) -> None:
    async with answering(answers) as url:
        engine = RemoteEngine(url + "/v1")
        assert engine.kind is EngineKind.OPENAI
        await engine.start()
        assert engine.kind is kind


CACHE = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="500"} 1.0'


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (f"# TYPE vllm:cache_config_info gauge\n{CACHE}\n", 8000),
        (CACHE.replace("500", "None"), None),
        ("vllm:num_requests_running 3.0", None),
        (None, None),
    ],
)
async def test_a_vllm_servers_kv_memory_is_read_from_its_metrics(
    metrics: str | None, expected: int | None
) -> None:
    answers = VLLM if metrics is None else {**VLLM, "/metrics": metrics}
    async with answering(answers) as url:
        engine = RemoteEngine(url)
        await engine.start()
        assert engine.kv_tokens == expected


def test_an_unreachable_address_states_no_kv_memory() -> None:
    assert asyncio.run(read_cache("http://127.0.0.1:1", 1.0)) == CacheFacts(tokens=None, ranks=1)


async def test_each_rank_of_a_server_has_a_report_port() -> None:
    ranks = "\n".join(CACHE.replace('engine="0"', f'engine="{rank}"') for rank in range(3))
    async with answering({**VLLM, "/metrics": ranks}) as url:
        engine = RemoteEngine(url, report_port=9000)
        assert list(engine.report_endpoints) == []
        await engine.start()
        assert list(engine.report_endpoints) == [f"tcp://127.0.0.1:{port}" for port in (9000, 9001, 9002)]
        assert engine.kv_tokens == 8000


def test_only_vllm_has_report_ports() -> None:
    assert (
        list(RemoteEngine("http://h:8000", kind=EngineKind.SGLANG, report_port=9000).report_endpoints) == []
    )
    engine = RemoteEngine("http://[fd00::1]:8000", kind=EngineKind.VLLM, report_port=9000)
    assert list(engine.report_endpoints) == ["tcp://[fd00::1]:9000"]


async def test_a_configured_kind_is_not_probed() -> None:
    async with answering(VLLM) as url:
        settings = Settings(engine=EngineSettings(urls=(url,), kind="sglang"))
        (engine,) = make_engines(settings)
        await engine.start()
        assert engine.kind is EngineKind.SGLANG


def test_an_unreachable_address_gets_the_common_fields() -> None:
    assert asyncio.run(detect_kind("http://127.0.0.1:1", 1.0)) is EngineKind.OPENAI


def test_the_setting_knows_every_kind() -> None:
    assert (AUTO_KIND, *EngineKind) == ENGINE_KINDS
    with pytest.raises(SettingsError) as caught:
        EngineSettings(kind="tgi")
    assert caught.value.field == "engine.kind"


async def test_a_refused_connection_is_named_in_the_systems_words() -> None:
    health = await probe.probe(f"http://127.0.0.1:{free_port()}", 5.0)
    assert health.problem == "does not answer (Connection refused)"


async def test_what_a_probe_reads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = '{"data": [{"id": "m"}], "more": "' + "x" * 9000 + '"}'
    async with answering({"/v1/models": listed, "/metrics": "x" * 9000}) as url:
        assert list(await read_models(url, 5.0)) == ["m"]
        monkeypatch.setattr(probe, "MAX_PROBE_BYTES", 8000)
        assert await read_models(url, 5.0) == {}
        assert await read_cache(url, 5.0) == CacheFacts()
