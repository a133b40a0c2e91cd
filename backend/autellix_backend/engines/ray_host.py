"""The Ray actor that runs one vLLM server on a node of the cluster.

The server is a child of the actor's process, under its guard, so it ends with the actor: whenever the gateway
that placed it ends. The scheduler's datagrams wait here until the gateway fetches them. Only plain values
cross the two processes: errors become text here.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autellix_backend.engines.base import EngineError
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.engines.replica_spec import replica_spec
from autellix_backend.engines.vllm_command import VLLM_SERVER
from autellix_backend.settings import Settings, SettingsError

WATCH_PERIOD_S = 0.1
MAX_DATAGRAM_BYTES = 64 * 1024
MAX_KEPT_DATAGRAMS = 4096
"""The oldest are dropped if the gateway does not fetch them."""
RECEIVE_BUFFER_BYTES = 4 * 2**20


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
        self._inbox = _Inbox()

    async def place(self) -> Place:
        """Return the actor's place, which it has once it answers."""
        import ray

        return Place(node=ray.get_runtime_context().get_node_id(), pid=os.getpid())

    async def start(self) -> Start:
        """Start the server and return when it is ready."""
        try:
            # In a thread: it may generate the demo model.
            self._replica = await asyncio.to_thread(self._make_replica)
            if self._replica.report_socket is not None:
                self._inbox.open(self._replica.report_socket)
            await self._replica.start()
        except (EngineError, SettingsError, OSError) as error:
            self._inbox.close()
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
        return await self._inbox.take()

    async def stop(self) -> None:
        """Drain and end the server."""
        await self._started().stop()
        self._inbox.close()

    async def kill(self, reason: str) -> None:
        """Kill the server."""
        await self._started().kill(reason)
        self._inbox.close()

    def _make_replica(self) -> VllmReplica:
        import ray

        key = self._settings.engine.api_key
        spec = replace(
            replica_spec(self._settings, name=self._name),
            host=ray.util.get_node_ip_address(),
            # Others can reach this server, so it requires the gateway's key.
            environment={} if key is None else {"VLLM_API_KEY": key},
        )
        return VllmReplica(spec, name=self._name, server=self._server)

    def _started(self) -> VllmReplica:
        assert self._replica is not None, "start() comes first"
        return self._replica


class _Inbox:
    """A bound datagram socket and its received datagrams."""

    def __init__(self) -> None:
        self._datagrams: deque[bytes] = deque(maxlen=MAX_KEPT_DATAGRAMS)
        self._has_some = asyncio.Event()
        self._socket: socket.socket | None = None
        self._path: Path | None = None

    def open(self, path: Path) -> None:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setblocking(False)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        receiver.bind(str(path))
        asyncio.get_running_loop().add_reader(receiver, self._read, receiver)
        self._socket, self._path = receiver, path

    def close(self) -> None:
        receiver, self._socket = self._socket, None
        if receiver is not None:
            asyncio.get_running_loop().remove_reader(receiver)
            receiver.close()
            assert self._path is not None
            self._path.unlink(missing_ok=True)

    async def take(self) -> list[bytes]:
        await self._has_some.wait()
        self._has_some.clear()
        taken = list(self._datagrams)
        self._datagrams.clear()
        return taken

    def _read(self, receiver: socket.socket) -> None:
        try:
            while True:
                self._datagrams.append(receiver.recv(MAX_DATAGRAM_BYTES))
        except BlockingIOError:
            self._has_some.set()
