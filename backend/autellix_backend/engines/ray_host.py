"""The Ray actor that runs one vLLM server on a node of the cluster.

The server is a child of the actor's process, under its guard, so it ends with the actor: whenever the gateway
that placed it ends. The scheduler's datagrams wait here until the gateway fetches them. Only plain values
cross the two processes: errors become text here.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from autellix_backend.engines.base import EngineError
from autellix_backend.engines.datagrams import DatagramReceiver
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.engines.vllm_command import VLLM_SERVER
from autellix_backend.settings import Settings, SettingsError

WATCH_PERIOD_S = 0.1
MAX_KEPT_DATAGRAMS = 4096
"""The oldest are dropped if the gateway does not fetch them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The node and process of an actor."""

    node: str
    """Ray's id."""
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The result of a start: an address, or a problem."""

    base_url: str = ""
    problem: str | None = None


class ReplicaHost:
    """The actor's class; its methods may run concurrently."""

    def __init__(self, settings: Settings, name: str, server: Sequence[str] = VLLM_SERVER) -> None:
        self._settings = settings
        self._name = name
        self._server = tuple(server)
        self._replica: VllmReplica | None = None
        self._receiver: DatagramReceiver | None = None
        self._datagrams: deque[bytes] = deque(maxlen=MAX_KEPT_DATAGRAMS)
        self._has_datagrams = asyncio.Event()

    async def place(self) -> Place:
        """Return the actor's place, which it has once it answers."""
        import ray

        return Place(node=ray.get_runtime_context().get_node_id(), pid=os.getpid())

    async def start(self) -> Start:
        """Start the server and return when it is ready."""
        try:
            # In a thread: it may generate the demo model.
            self._replica = await asyncio.to_thread(self._make_replica)
            self._receiver = DatagramReceiver(self._replica.report_socket, self._keep)
            self._receiver.open()
            await self._replica.start()
        except (EngineError, SettingsError, OSError) as error:
            self._close_receiver()
            return Start(problem=str(error))
        return Start(base_url=self._replica.base_url)

    async def ended(self) -> str:
        """Wait for the server's end and return its reason in one line."""
        replica = self._started()
        while replica.is_alive():  # noqa: ASYNC110 - the process is polled
            await asyncio.sleep(WATCH_PERIOD_S)
        return replica.failure() or f"{self._name} was stopped"

    async def datagrams(self) -> list[bytes]:
        """Wait for datagrams of the scheduler and return them."""
        await self._has_datagrams.wait()
        self._has_datagrams.clear()
        taken = list(self._datagrams)
        self._datagrams.clear()
        return taken

    async def stop(self) -> None:
        """Drain and end the server."""
        await self._started().stop()
        self._close_receiver()

    async def kill(self, reason: str) -> None:
        """Kill the server."""
        await self._started().kill(reason)
        self._close_receiver()

    def _keep(self, datagram: bytes) -> None:
        self._datagrams.append(datagram)
        self._has_datagrams.set()

    def _close_receiver(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    def _make_replica(self) -> VllmReplica:
        import ray

        key = self._settings.engine.api_key
        return VllmReplica(
            self._settings,
            name=self._name,
            host=ray.util.get_node_ip_address(),
            # Others can reach this server, so it requires the gateway's key.
            environment={} if key is None else {"VLLM_API_KEY": key},
            server=self._server,
        )

    def _started(self) -> VllmReplica:
        assert self._replica is not None, "start() comes first"
        return self._replica
