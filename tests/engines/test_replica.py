"""A replica starts its server, reports its failures, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.other_processes import is_running
from tests.waiting import PATIENCE_S, wait_until

import autellix_backend
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.base import Engine, EngineStartError, ModelNotFoundError
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.engines.vllm_command import KV_SPEC, EngineArgumentError, check_arguments, check_model
from autellix_backend.settings import EngineSettings, ObserveSettings, Settings
from autellix_backend.settings.scheduler import scheduler_from_mapping

FAKE_SERVER = (sys.executable, "-S", str(Path(__file__).parent / "fake_server.py"))


def settings_of(folder: Path, **engine: Any) -> Settings:
    return Settings(engine=EngineSettings(**{"model": "m", "state_dir": folder, **engine}))


def make_replica(
    folder: Path, *extra_args: str, startup_timeout_s: float = PATIENCE_S, shutdown_timeout_s: float = 3.0
) -> VllmReplica:
    settings = settings_of(folder, extra_args=extra_args, startup_timeout_s=startup_timeout_s)
    return VllmReplica(settings, shutdown_timeout_s=shutdown_timeout_s, server=FAKE_SERVER)


def read_pids(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def test_starts_answers_and_stops(tmp_path: Path) -> None:
    """After start() the server answers; after stop() server and grandchild are gone; both may be repeated."""
    pid_file = tmp_path / "pids"
    replica = make_replica(tmp_path, "--pid-file", str(pid_file))

    async def main() -> None:
        await replica.start()
        await replica.start()
        assert (replica.is_alive(), replica.failure()) == (True, None)
        async with aiohttp.ClientSession() as client, client.get(replica.base_url + "/health") as response:
            assert response.status == 200
        await replica.stop()
        await replica.stop()

    asyncio.run(main())
    assert isinstance(replica, Engine)
    assert (replica.is_alive(), replica.failure()) == (False, None)
    wait_until(lambda: not any(map(is_running, read_pids(pid_file))))


def test_a_server_that_dies_at_start_has_its_first_error_in_the_message(tmp_path: Path) -> None:
    """The message holds the exit code, the root cause, and the tail of the log."""
    replica = make_replica(tmp_path, "--fail", "start")

    with pytest.raises(
        EngineStartError, match=r"exit code 3 .*: ValueError: the model is too large"
    ) as caught:
        asyncio.run(replica.start())

    assert "Engine core initialization failed" in caught.value.log_tail
    assert replica.pid is None


def test_a_server_that_is_late_is_ended(tmp_path: Path) -> None:
    """A start that takes too long names the setting, and leaves no process."""
    pid_file = tmp_path / "pids"
    arguments = ("--fail", "late", "--pid-file", str(pid_file))
    replica = make_replica(tmp_path, *arguments, startup_timeout_s=1.0)

    with pytest.raises(EngineStartError, match=r"not ready within 1 s \(engine.startup_timeout_s\)"):
        asyncio.run(replica.start())

    wait_until(lambda: not any(map(is_running, read_pids(pid_file))))


def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    """Cancelling start() ends the half-started server."""
    pid_file = tmp_path / "pids"
    replica = make_replica(tmp_path, "--fail", "late", "--pid-file", str(pid_file))

    async def main() -> None:
        start = asyncio.create_task(replica.start())
        await asyncio.to_thread(wait_until, lambda: len(read_pids(pid_file)) == 2)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(main())

    wait_until(lambda: not any(map(is_running, read_pids(pid_file))))


async def test_a_taken_port_is_tried_again(tmp_path: Path) -> None:
    """A server that loses its port to somebody else is started on another."""
    replica = make_replica(tmp_path, "--busy-once", str(tmp_path / "tried"))

    await replica.start()
    assert replica.is_alive()
    await replica.stop()


async def test_notices_a_death_and_can_start_again(tmp_path: Path) -> None:
    """A server that dies later makes is_alive() false and failure() tell the exit code and cause."""
    pid_file = tmp_path / "pids"
    replica = make_replica(tmp_path, "--pid-file", str(pid_file))

    await replica.start()
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientError):
            await client.get(replica.base_url + "/die")
    await asyncio.to_thread(wait_until, lambda: not replica.is_alive())
    assert "exit code 7: RuntimeError: told to die" in str(replica.failure())
    await asyncio.to_thread(wait_until, lambda: not any(map(is_running, read_pids(pid_file))))
    await replica.start()
    assert (replica.is_alive(), replica.failure()) == (True, None)
    await replica.stop()


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """After the grace the whole group is killed."""
    pid_file = tmp_path / "pids"
    arguments = ("--fail", "stop", "--pid-file", str(pid_file))
    replica = make_replica(tmp_path, *arguments, shutdown_timeout_s=0.5)

    async def main() -> None:
        await replica.start()
        await replica.stop()

    asyncio.run(main())
    wait_until(lambda: not any(map(is_running, read_pids(pid_file))))


def test_nothing_outlives_a_killed_owner(tmp_path: Path) -> None:
    """SIGKILL of the process that started a replica ends the replica's processes too."""
    pid_file = tmp_path / "pids"
    script = tmp_path / "owner.py"
    script.write_text(
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from autellix_backend.engines.replica import VllmReplica\n"
        "from autellix_backend.settings import EngineSettings, Settings\n"
        "extra_args = ('--pid-file', sys.argv[2])\n"
        "engine = EngineSettings(model='m', state_dir=Path(sys.argv[1]), extra_args=extra_args)\n"
        f"server = {FAKE_SERVER!r}\n"
        "replica = VllmReplica(Settings(engine=engine), shutdown_timeout_s=1.0, server=server)\n"
        "asyncio.run(replica.start())\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, str(script), str(tmp_path), str(pid_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert all(map(is_running, read_pids(pid_file)))
        os.kill(owner.pid, signal.SIGKILL)

    wait_until(lambda: not any(map(is_running, read_pids(pid_file))))


def test_the_command_carries_the_plugin(tmp_path: Path) -> None:
    """The plugin's settings travel as vLLM's additional config."""
    replica = make_replica(tmp_path, "--dtype", "float32")

    command = replica.command(1234)
    config = json.loads(command[command.index("--additional-config") + 1])["autellix"]

    assert scheduler_from_mapping(config["scheduler"]) == SchedulerConfig()
    assert [config["report_address"]] == replica.report_endpoints
    assert command[-2:] == ["--dtype", "float32"]


def test_a_folder_for_records_is_the_schedulers_too(tmp_path: Path) -> None:
    settings = replace(settings_of(tmp_path), observe=ObserveSettings(record_dir=Path("records")))
    command = VllmReplica(settings).command(1)
    config = json.loads(command[command.index("--additional-config") + 1])["autellix"]
    assert config["record_dir"] == str(Path.cwd() / "records")


def test_host_memory_for_kv_blocks_becomes_a_connector(tmp_path: Path) -> None:
    """In GiB for the user, in bytes for vLLM; what cannot be loaded is computed."""
    command = VllmReplica(settings_of(tmp_path, kv_host_gib=1.5)).command(1)
    config = json.loads(command[command.index("--kv-transfer-config") + 1])

    assert config["kv_connector_extra_config"]["cpu_bytes_to_use"] == 3 << 29
    assert (config["kv_role"], config["kv_load_failure_policy"]) == ("kv_both", "recompute")
    for path, name in (
        (config["kv_connector_module_path"], config["kv_connector"]),
        (config["kv_connector_extra_config"]["spec_module_path"], KV_SPEC.rpartition(".")[2]),
    ):
        source = Path(autellix_backend.__file__).parents[1] / (path.replace(".", "/") + ".py")
        assert f"class {name}(" in source.read_text()
    assert "--kv-transfer-config" not in VllmReplica(settings_of(tmp_path)).command(1)


def test_a_kv_connector_of_the_user_collides_with_ours(tmp_path: Path) -> None:
    """Two could not share the engine; without ours the user's own goes through."""
    arguments = ("--kv-transfer-config={}",)
    settings = settings_of(tmp_path, extra_args=arguments, kv_host_gib=1.0)

    with pytest.raises(EngineArgumentError, match="--kv-transfer-config is set by autellix"):
        asyncio.run(VllmReplica(settings).start())
    check_arguments(arguments)


@pytest.mark.parametrize("argument", ["--port", "--scheduler_cls=x", "--additional-config"])
def test_our_arguments_cannot_be_replaced(tmp_path: Path, argument: str) -> None:
    """An extra argument that collides with ours is refused by name."""
    with pytest.raises(EngineArgumentError, match=r"engine.extra_args: --[a-z-]+ is set by autellix"):
        asyncio.run(make_replica(tmp_path, argument).start())


def test_a_missing_model_is_found_early(tmp_path: Path) -> None:
    """A folder without a model fails before any process starts."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    replica = VllmReplica(settings_of(tmp_path, model=str(tmp_path)))

    with pytest.raises(ModelNotFoundError, match=r"is a folder without a config\.json"):
        asyncio.run(replica.start())

    assert not replica.log.path.exists()


def test_a_misspelt_model_of_ours_is_found_early() -> None:
    """vLLM would import for a minute, and then ask the model hub."""
    with pytest.raises(ModelNotFoundError, match=r"'smolm2' is no folder, .*; did you mean 'smollm2'\?"):
        check_model("smolm2")
    for other in ("Qwen/Qwen3-8B", "org/smolm2", "gpt2", "s3://models/demo"):
        check_model(other)


def test_the_socket_of_reports_is_in_a_private_folder_of_its_time(tmp_path: Path) -> None:
    replica = make_replica(tmp_path)

    async def main() -> Path:
        await replica.start()
        [address] = replica.report_endpoints
        path = Path(address.removeprefix("ipc://"))
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        await replica.stop()
        return path

    assert not asyncio.run(main()).parent.exists()
