"""`autellix serve` announces itself, passes calls on, and ends on a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE_S, until

from autellix_backend.cli.main import main
from autellix_backend.cli.options import settings_from_args
from autellix_backend.cli.serve import add_arguments, serve, serve_on
from autellix_backend.cli.server import bind
from autellix_backend.engines.base import EngineError
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.gateway.tenancy.tenants import key_line, new_key
from autellix_backend.settings import EngineSettings, GatewaySettings, Settings, StoreSettings
from autellix_lab.demo import model as demo_model

FAKE_SERVER = (sys.executable, "-S", str(Path(__file__).parents[1] / "engines" / "fake_server.py"))
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
READY = re.compile(r"Autellix is ready: .* at (http://127\.0\.0\.1:\d+)/v1")


def make_settings(folder: Path, **engine: object) -> Settings:
    return Settings(
        gateway=GatewaySettings(port=0, shutdown_grace_s=1.0),
        engine=EngineSettings(state_dir=folder, **engine),  # type: ignore[arg-type]
    )


async def wait_ready(capsys: pytest.CaptureFixture[str], seen: list[str]) -> str:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen.append(capsys.readouterr().out)
            if found := READY.search("".join(seen)):
                return found[1]
            await asyncio.sleep(0.05)


async def serve_and(
    settings: Settings, capsys: pytest.CaptureFixture[str], use: Callable[[str], Awaitable[None]]
) -> int:
    """Serve, use the root address, end with SIGTERM; return the exit code."""
    server = asyncio.create_task(serve(settings))
    await use(await wait_ready(capsys, []))
    os.kill(os.getpid(), signal.SIGTERM)
    return await asyncio.wait_for(server, PATIENCE_S)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """Yield a running engine of others."""
    found = FakeEngine()
    await found.start()
    yield found
    await found.stop()


async def test_serves_a_remote_engine_until_sigterm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: FakeEngine
) -> None:
    """A call goes through the gateway to the engine, and SIGTERM ends the server with code 0."""

    async def use(root: str) -> None:
        async with (
            aiohttp.ClientSession() as client,
            client.post(root + "/v1/chat/completions", json=BODY) as response,
        ):
            assert response.status == 200, await response.text()

    assert await serve_and(make_settings(tmp_path, urls=(engine.base_url,)), capsys, use) == 0


async def test_serves_calls_and_metrics_without_a_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: FakeEngine
) -> None:
    """Neither the page is there nor a note of its address."""
    settings = make_settings(tmp_path, urls=(engine.base_url,))
    settings = replace(settings, gateway=replace(settings.gateway, console=False, page="on"))

    async def use(root: str) -> None:
        async with aiohttp.ClientSession() as client:
            async with client.post(root + "/v1/chat/completions", json=BODY) as response:
                assert response.status == 200, await response.text()
            found = {}
            for path in (
                "/metrics",
                "/readyz",
                "/autellix/v1/engines",
                "/autellix/",
                "/autellix/v1/programs",
            ):
                async with client.get(root + path) as response:
                    found[path] = response.status
            assert [*found.values()] == [200, 200, 200, 404, 404]

    assert await serve_and(settings, capsys, use) == 0
    assert "shown at" not in capsys.readouterr().err


@pytest.fixture
def fake_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VllmReplica:
    replica = VllmReplica(make_settings(tmp_path, model="m"), server=FAKE_SERVER)
    monkeypatch.setattr("autellix_backend.cli.running_engines.make_engines", lambda _settings: [replica])
    return replica


@pytest.fixture
def loading_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VllmReplica:
    """Return an engine that never becomes ready."""
    settings = make_settings(tmp_path, model="m", extra_args=("--fail", "late"))
    replica = VllmReplica(settings, server=FAKE_SERVER)
    monkeypatch.setattr("autellix_backend.cli.running_engines.make_engines", lambda _settings: [replica])
    return replica


async def test_stops_its_engine_at_the_end(
    tmp_path: Path, fake_replica: VllmReplica, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replica lives as long as the server does, and the wait for its end is announced."""

    async def use(_root: str) -> None:
        assert fake_replica.is_alive()

    assert await serve_and(make_settings(tmp_path), capsys, use) == 0
    assert fake_replica.pid is None
    assert f"ending {fake_replica.name}" in capsys.readouterr().err


async def kill_engine(replica: VllmReplica) -> None:
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientError):
            await client.get(replica.base_url + "/die")
    await until(lambda: not replica.is_alive())


async def test_a_dead_engine_leaves_a_gateway_that_answers_503(
    tmp_path: Path, fake_replica: VllmReplica, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without restarts, calls get a clear error and the server keeps running."""

    async def use(root: str) -> None:
        await kill_engine(fake_replica)
        async with (
            aiohttp.ClientSession() as client,
            client.post(root + "/v1/chat/completions", json=BODY) as response,
        ):
            assert response.status == 503
            assert "told to die" in (await response.json())["error"]["message"]

    assert await serve_and(make_settings(tmp_path, max_restarts=0), capsys, use) == 0
    assert fake_replica.pid is None


async def test_a_dead_engine_comes_back(
    tmp_path: Path,
    fake_replica: VllmReplica,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log says that the engine died and that it is up again."""
    caplog.set_level(logging.INFO)

    async def use(_root: str) -> None:
        first = fake_replica.pid
        await kill_engine(fake_replica)

        def is_back() -> bool:
            return fake_replica.is_alive() and fake_replica.pid != first and "up again" in caplog.text

        await until(is_back)

    assert await serve_and(make_settings(tmp_path), capsys, use) == 0
    assert "RuntimeError: told to die; restarting" in caplog.text
    assert fake_replica.pid is None


async def test_a_signal_during_the_start_ends_the_engine(
    tmp_path: Path, loading_replica: VllmReplica
) -> None:
    """SIGINT while the engine loads leaves no process and gives code 130."""
    server = asyncio.create_task(serve(make_settings(tmp_path)))
    await until(lambda: loading_replica.pid is not None)
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(server, PATIENCE_S) == 130
    assert loading_replica.pid is None


def with_tenants(settings: Settings, path: Path) -> Settings:
    """Write a tenants file with one tenant, and return settings that name it."""
    path.write_text(f'[[tenant]]\nname = "a"\nkeys = ["{key_line(new_key())}"]')
    return replace(settings, gateway=replace(settings.gateway, tenants_file=path))


async def hang_up(caplog: pytest.LogCaptureFixture, words: str = "read the tenants file again") -> None:
    """Send SIGHUP to this process, and wait until these words are in the log."""
    caplog.set_level(logging.INFO)

    # Unhandled it would end this process.
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: words in caplog.text)


async def test_sighup_during_the_start_reloads_the_tenants(
    tmp_path: Path, loading_replica: VllmReplica, caplog: pytest.LogCaptureFixture
) -> None:
    """A unit that is reloaded while its engines load goes on starting."""
    server = asyncio.create_task(serve(with_tenants(make_settings(tmp_path), tmp_path / "tenants.toml")))
    await until(lambda: loading_replica.pid is not None)
    await hang_up(caplog)
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(server, PATIENCE_S) == 130


async def test_sighup_while_the_engines_stop_reloads_the_tenants(
    tmp_path: Path,
    fake_replica: VllmReplica,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A unit that is reloaded while it ends stops its engines all the same."""
    stop, stopping, may_stop = fake_replica.stop, asyncio.Event(), asyncio.Event()

    async def stop_later() -> None:
        stopping.set()
        await may_stop.wait()
        await stop()

    monkeypatch.setattr(fake_replica, "stop", stop_later)
    server = asyncio.create_task(serve(with_tenants(make_settings(tmp_path), tmp_path / "tenants.toml")))
    await wait_ready(capsys, [])
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stopping.wait(), PATIENCE_S)
    await hang_up(caplog)
    may_stop.set()
    assert await asyncio.wait_for(server, PATIENCE_S) == 0
    assert fake_replica.pid is None


@pytest.mark.parametrize("page", ["on", "off"])
async def test_while_the_engines_start_the_page_says_so_and_calls_come_again(
    tmp_path: Path, loading_replica: VllmReplica, page: str
) -> None:
    settings = make_settings(tmp_path)
    settings = replace(settings, gateway=replace(settings.gateway, page=page))
    found: dict[str, tuple[int, str]] = {}

    with contextlib.closing(bind(settings.gateway)) as listener:
        server = asyncio.create_task(serve_on(settings, listener))
        await until(lambda: loading_replica.pid is not None)
        root = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession() as client:
            for path in ("/", "/autellix/", "/autellix/page/page.css", "/autellix/page/none", "/health"):
                async with client.get(root + path) as response:
                    found[path] = response.status, await response.text()
                    assert response.status != 503 or response.headers["retry-after"] == "5"
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(server, PATIENCE_S) == 130

    assert found["/health"][0] == 503
    assert '"code":"starting"' in found["/health"][1].replace(" ", "")
    if page == "on":
        assert [status for status, _ in found.values()] == [200, 200, 200, 404, 503]
        assert "Starting the engines" in found["/"][1]
    else:
        assert {status for status, _ in found.values()} == {503}


async def in_flight(client: aiohttp.ClientSession, root: str, engine: FakeEngine) -> list[asyncio.Task[Any]]:
    """Make a call that streams and one that does not; return once both are at the engine."""

    async def call(is_streaming: bool) -> tuple[int, bytes]:
        body = BODY | {"stream": is_streaming}
        async with client.post(root + "/v1/chat/completions", json=body) as response:
            return response.status, await response.read()

    calls = [asyncio.create_task(call(is_streaming)) for is_streaming in (True, False)]
    await engine.wait_until(lambda: len(engine.calls) == 2)
    await until(lambda: any(received.json.get("stream") for received in engine.calls))
    return calls


async def test_sigterm_finishes_running_calls_and_refuses_new_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it drains the server still answers: not ready, and 503 to calls."""

    gate = asyncio.Event()
    engine = FakeEngine(FakeBehaviour(gate=gate))
    await engine.start()
    settings = replace(
        make_settings(tmp_path, urls=(engine.base_url,)),
        gateway=GatewaySettings(port=0, shutdown_grace_s=PATIENCE_S),
    )
    server = asyncio.create_task(serve(settings))
    root = await wait_ready(capsys, [])
    async with aiohttp.ClientSession() as client:
        calls = await in_flight(client, root, engine)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with client.get(root + "/readyz") as response:
                    if response.status == 503:
                        break
        async with client.post(root + "/v1/chat/completions", json={"messages": []}) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert response.headers["Connection"] == "close"
        gate.set()
        for status, content in await asyncio.gather(*calls):
            assert status == 200
            assert b"token3" in content
    code = await asyncio.wait_for(server, PATIENCE_S)
    await engine.stop()
    assert code == 0


async def test_a_gateway_that_has_others_hands_over_at_sigterm(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No new connection reaches it; calls on kept ones, and calls that wait, are answered."""

    monkeypatch.setattr("autellix_backend.cli.server.HAND_OVER_S", PATIENCE_S)
    gate = asyncio.Event()
    engine = FakeEngine(FakeBehaviour(gate=gate))
    await engine.start()
    settings = replace(
        make_settings(tmp_path, urls=(engine.base_url,), max_in_flight=2),
        gateway=GatewaySettings(port=0, shutdown_grace_s=PATIENCE_S),
        store=StoreSettings(url=redis_server.url, key_prefix="hand-over"),
    )
    server = asyncio.create_task(serve(settings))
    root = await wait_ready(capsys, [])
    async with aiohttp.ClientSession() as client:

        async def has_queued_calls() -> bool:
            async with client.get(root + "/autellix/v1/engines") as response:
                assert "Connection" not in response.headers
                return bool((await response.json())["engines"][0]["queued_calls"])

        async def call() -> tuple[int, str | None]:
            async with client.post(root + "/v1/chat/completions", json=BODY) as response:
                await response.read()
                return response.status, response.headers.get("Connection")

        running = await in_flight(client, root, engine)
        queued = asyncio.create_task(call())
        await until(has_queued_calls)
        os.kill(os.getpid(), signal.SIGTERM)
        await until_refused(root)
        late = asyncio.create_task(call())
        await asyncio.sleep(0)
        gate.set()
        assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]
        assert (await queued)[0] == 200
        assert await late == (200, "close")
    assert await asyncio.wait_for(server, PATIENCE_S) == 0
    await engine.stop()


async def until_refused(root: str) -> None:
    """Wait until nothing listens there."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", int(root.rpartition(":")[2]))
            except ConnectionRefusedError:
                return
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(("grace_s", "signals", "code"), [(0.2, 1, 0), (60.0, 2, 130)])
async def test_calls_that_outlast_the_grace_get_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], grace_s: float, signals: int, code: int
) -> None:
    """After the grace or a second signal: 503, or an error event in a stream."""

    engine = FakeEngine(FakeBehaviour(output_tokens=10_000, token_delay_s=0.02))
    await engine.start()
    gateway = GatewaySettings(port=0, shutdown_grace_s=grace_s)
    server = asyncio.create_task(
        serve(replace(make_settings(tmp_path, urls=(engine.base_url,)), gateway=gateway))
    )
    root = await wait_ready(capsys, [])
    async with aiohttp.ClientSession() as client:
        calls = await in_flight(client, root, engine)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            # Signals that come at once are one.
            await asyncio.sleep(0.1)
        (stream_status, stream), (status, content) = await asyncio.gather(*calls)
        assert (stream_status, status) == (200, 503)
        for told in (stream, content):
            assert b'"code":"shutting_down"' in told
        assert b'"retryable":false' in stream
    ended = await asyncio.wait_for(server, PATIENCE_S)
    await until(lambda: engine.aborted_calls == 2)
    await engine.stop()
    assert ended == code


def test_the_demo_model_is_generated_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`demo` stands for the generated model below the cache folder, under its own name."""
    built: list[Path] = []

    def build(directory: Path) -> Path:
        built.append(directory)
        return directory

    monkeypatch.setattr(demo_model, "build_demo_model", build)

    replica = VllmReplica(make_settings(tmp_path, model="demo", max_num_seqs=3))
    command = replica.command(1)

    assert built == [Path(replica.model)]
    assert built[0].parent == tmp_path
    assert replica.served_model_name == "autellix.demo-model"
    assert command[command.index("--max-num-seqs") + 1] == "3"
    assert replica.log.path == tmp_path / "logs" / f"replica-0-pid{os.getpid()}.log"


def test_a_misspelt_variable_is_named_at_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ignored, and the command goes on."""
    monkeypatch.setenv("AUTELLIX_LIMIT_MAX_CALLS", "1")
    assert main(["serve", "/nowhere"]) == 2
    expected = (
        "AUTELLIX_LIMIT_MAX_CALLS is not a variable of Autellix; did you mean AUTELLIX_LIMITS_MAX_CALLS?"
    )
    assert expected in capsys.readouterr().err


def test_an_unreachable_remote_engine_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote engine that does not answer is named with its address."""
    monkeypatch.setattr("autellix_backend.engines.remote.START_PATIENCE_S", 0.0)

    with pytest.raises(EngineError, match=r"engine\.urls: http://127\.0\.0\.1:1 does not answer") as error:
        asyncio.run(serve(make_settings(tmp_path, urls=("http://127.0.0.1:1",))))
    assert "engine.must_answer = false" in str(error.value)


def test_a_call_log_that_cannot_be_written_shows_before_the_engine_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "absent" / "trace.jsonl"
    arguments = ["serve", "--port", "0", "--engine", "http://127.0.0.1:1", "--call-log", str(path)]
    assert main(arguments) == 2
    assert f"observe.call_log: cannot write {path}" in capsys.readouterr().err


async def test_sighup_reloads_the_tenants(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    engine: FakeEngine,
) -> None:
    """A key added to the file is accepted from then on; a faulty file changes nothing."""
    path = tmp_path / "tenants.toml"
    keys = [new_key(), new_key()]

    def write(name: str, key: str) -> None:
        path.write_text(f'[[tenant]]\nname = "{name}"\nkeys = ["{key_line(key)}"]')

    async def statuses(root: str) -> list[int]:
        async with aiohttp.ClientSession() as client:
            found = []
            for key in keys:
                headers = {"Authorization": f"Bearer {key}"}
                async with client.get(root + "/autellix/v1/programs", headers=headers) as response:
                    found.append(response.status)
            return found

    async def use(root: str) -> None:
        assert await statuses(root) == [200, 401]
        write("Bad", keys[1])
        await hang_up(caplog, "the tenants stay as they were")
        assert await statuses(root) == [200, 401]
        write("good", keys[1])
        await hang_up(caplog)
        assert await statuses(root) == [401, 200]

    write("first", keys[0])
    settings = make_settings(tmp_path, urls=(engine.base_url,))
    settings = replace(settings, gateway=replace(settings.gateway, tenants_file=path))
    assert await serve_and(settings, capsys, use) == 0


async def test_serves_while_an_optional_engine_is_missing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engine: FakeEngine,
) -> None:
    """Calls go to the engine that is there; the other one is down."""
    monkeypatch.setattr("autellix_backend.engines.remote.START_PATIENCE_S", 0.05)

    async def use(root: str) -> None:
        async with aiohttp.ClientSession() as client:
            for _ in range(4):
                async with client.post(root + "/v1/chat/completions", json=BODY) as response:
                    assert response.status == 200
                    assert response.headers["X-Autellix-Engine"] == "remote-1"

    urls = ("http://127.0.0.1:1", engine.base_url)
    assert await serve_and(make_settings(tmp_path, urls=urls, must_answer=False), capsys, use) == 0


async def test_the_policy_of_engines_that_have_not_answered_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster, whose engines take longer to start than gateways."""
    monkeypatch.setattr("autellix_backend.engines.remote.START_PATIENCE_S", 0.05)
    settings = make_settings(tmp_path, urls=("http://127.0.0.1:1",), must_answer=False)
    seen: list[str] = []
    server = asyncio.create_task(serve(settings))
    await wait_ready(capsys, seen)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(server, PATIENCE_S) == 0
    assert "(policy not known yet: no engine reports)" in "".join(seen)


@pytest.mark.parametrize(
    ("words", "address"), [([], None), (["--ray"], "auto"), (["--ray", "head:6379"], "head:6379")]
)
def test_ray_needs_no_address(words: list[str], address: str | None) -> None:
    """`--ray` alone uses the cluster of this machine."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert settings_from_args(parser.parse_args(["demo", *words])).ray.address == address
