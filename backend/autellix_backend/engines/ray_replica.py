"""A vLLM server that Ray places on one of its nodes, as an Engine.

Ray chooses the node. The supervisor decides whether and when to restart a dead server, as for any engine that
we own. Each start creates a new actor, so a restart may choose another node. The scheduler reports at a port
there, as that of any engine on another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Sequence
from typing import Any

from autellix_backend.engines.base import EngineError, EngineKind, Health
from autellix_backend.engines.probe import probe
from autellix_backend.engines.ray_host import ProcessPlace, ReplicaHost, Start
from autellix_backend.engines.replica import SHUTDOWN_TIMEOUT_S
from autellix_backend.engines.shares import workers_of_one
from autellix_backend.engines.vllm_command import VLLM_SERVER, is_cpu_engine
from autellix_backend.install import pip_install
from autellix_backend.settings import ANY_CLUSTER, Settings

PLACEMENT_TIMEOUT_S = 60.0
"""A cluster with room places an actor in seconds; a longer wait would hide that it has none."""
MARGIN_S = 15.0
"""Added to the server's own bounds for the answers of its actor."""
CONNECT_TIMEOUT_S = 5.0


class RayError(EngineError):
    """Ray is not installed, has no cluster or no room, or lost the node."""


def connect(address: str) -> Any:
    """Return the `ray` module, connected; takes seconds, but no time where it is connected.

    Raises:
        RayError: if Ray is not installed, or the cluster cannot be reached.
    """
    _check_head(address)
    try:
        import ray
    except ImportError as error:
        raise RayError(f"ray.address: Ray is not installed; expected {pip_install('ray')}") from error
    if not ray.is_initialized():
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RayError(
                f"ray.address: there is no cluster at {address!r} ({_first_line(error).rstrip('.')}); "
                "expected this machine to be a node of one: `ray start`"
            ) from error
    return ray


def _check_head(address: str) -> None:
    """Fail early: Ray would retry the address for minutes, and could not be cancelled."""
    if address == ANY_CLUSTER:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise RayError(
            f"ray.address: nothing answers at {address!r}; expected the address that `ray start` prints"
        ) from error


class RayReplica:
    """One vLLM server on a node of the cluster; it can be started and stopped any number of times."""

    kind = EngineKind.VLLM
    is_owned = True
    kv_tokens = None

    def __init__(
        self, settings: Settings, connecting: asyncio.Lock, *, name: str, server: Sequence[str] = VLLM_SERVER
    ) -> None:
        """Create a replica that is not placed yet.

        Args:
            settings: Those of engines, of their scheduler and of Ray, with an address.
            connecting: Is held meanwhile: one for all replicas.
            name: Its name.
            server: The command that starts a server.
        """
        self._settings = settings
        self._connecting = connecting
        self.name = name
        self._server = tuple(server)
        self.report_secret = settings.engine.report_secret or secrets.token_hex(16)
        """The secret that its scheduler shares with this gateway."""
        self.report_endpoints: Sequence[str] = ()
        """The addresses of its ranks' reports; known after start()."""
        self.tool_parser: str | None = None
        """The parser that its node chose for calls of tools, None for none; known after start()."""
        self._ray: Any = None
        self._host: Any = None
        self._watching: asyncio.Task[None] | None = None
        self.base_url = ""
        """The server's root; valid after start()."""
        self._is_ready = False
        self._failure: str | None = None
        self.place: ProcessPlace | None = None
        """Its current or last place."""

    @property
    def model(self) -> str:
        """Return the name of its model for clients."""
        return str(self._settings.engine.served_model_name or self._settings.engine.model)

    async def start(self) -> None:
        """Have Ray place an actor, and return when its server answers."""
        if self.is_alive():
            return
        await self.stop()
        self._failure = None
        async with self._connecting:
            # In a thread: it takes seconds, and elsewhere Ray replaces our signal handlers.
            self._ray = await asyncio.to_thread(connect, str(self._settings.ray.address))
        self._host = self._make_host()
        try:
            await self._start_on(self._host)
        except BaseException:
            # Also when cancelled: a half-started server must not stay.
            self._drop()
            raise
        self._is_ready = True
        self._watching = asyncio.create_task(self._watch(self._host))

    async def stop(self) -> None:
        """Drain and end the server, and return its resources to Ray."""
        self._is_ready = False
        if self._host is not None:
            await self._end(self._host.stop.remote(), SHUTDOWN_TIMEOUT_S + MARGIN_S)

    async def kill(self, reason: str) -> None:
        """Kill the server and its actor."""
        self._is_ready = False
        self._failure = reason
        if self._host is not None:
            await self._end(self._host.kill.remote(reason), MARGIN_S)

    async def probe(self, timeout_s: float) -> Health:
        """Probe the server's health path."""
        return await probe(self.base_url, timeout_s)

    def is_alive(self) -> bool:
        """Return whether the server was ready and its end is not known."""
        return self._is_ready

    def failure(self) -> str | None:
        """Return why the server is gone, if it ended by itself."""
        return self._failure

    def _make_host(self) -> Any:
        wanted = self._settings.ray
        gpus = 0 if is_cpu_engine() else workers_of_one(self._settings.engine.extra_args)
        actor = self._ray.remote(ReplicaHost).options(
            num_cpus=wanted.cpus, num_gpus=gpus, scheduling_strategy="SPREAD", max_restarts=0
        )
        return actor.remote(self._settings, self.name, self.report_secret, self._server)

    async def _start_on(self, host: Any) -> None:
        room = f"within {PLACEMENT_TIMEOUT_S:g} s; expected one with the CPUs and GPUs of an engine free"
        self.place = await self._answer(
            host.place.remote(), PLACEMENT_TIMEOUT_S, "could not be placed", f"found no node with room {room}"
        )
        start: Start = await self._answer(
            host.start.remote(),
            self._settings.engine.startup_timeout_s + MARGIN_S,
            "was lost as it started",
            "did not report its start in time",
        )
        if start.problem is not None:
            raise RayError(f"on node {self.place.node}: {start.problem}")
        self.base_url, self.report_endpoints = start.base_url, start.report_endpoints
        self.tool_parser = start.tool_parser

    async def _answer(self, call: Awaitable[Any], limit_s: float, lost: str, late: str) -> Any:
        """Return the actor's answer; `lost` and `late` are the problems where none comes."""
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError:
            raise RayError(f"{self.name} {late}") from None
        except self._ray.exceptions.RayError as error:
            raise RayError(f"{self.name} {lost}: {_first_line(error)}") from error

    async def _watch(self, host: Any) -> None:
        try:
            reason: str = await host.ended.remote()
        except self._ray.exceptions.RayError as error:
            reason = f"{self.name} was lost with its actor: {_first_line(error)}"
        if self._host is host:
            self._is_ready = False
            self._failure = self._failure or reason

    async def _end(self, call: Awaitable[None], limit_s: float) -> None:
        # A lost node does not answer; Ray ends its actors by itself.
        with contextlib.suppress(TimeoutError, self._ray.exceptions.RayError):
            async with asyncio.timeout(limit_s):
                await call
        self._drop()

    def _drop(self) -> None:
        """End the actor, and with it all processes of the server."""
        host, self._host = self._host, None
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if host is not None:
            self._ray.kill(host)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
