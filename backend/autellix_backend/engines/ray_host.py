"""The Ray actor that runs one vLLM server on a node of the cluster.

The server is a child of the actor's process, under its guard, so it ends with the actor: whenever the gateway
that placed it ends. The scheduler reports at a port of the node. Only plain values cross the two processes:
errors become text here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from autellix_backend.engines.base import EngineError
from autellix_backend.engines.replica import VllmReplica, free_port
from autellix_backend.engines.vllm_command import VLLM_SERVER
from autellix_backend.environment import REPORT_SECRET_VARIABLE
from autellix_backend.settings import Settings, SettingsError

WATCH_PERIOD_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """The node and process of an actor."""

    node: str
    """Ray's id."""
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The result of a start: an address, or a problem."""

    base_url: str = ""
    report_endpoints: Sequence[str] = ()
    tool_parser: str | None = None
    problem: str | None = None


class ReplicaHost:
    """The actor's class; its methods may run concurrently."""

    def __init__(
        self, settings: Settings, name: str, report_secret: str, server: Sequence[str] = VLLM_SERVER
    ) -> None:
        self._settings = settings
        self._report_secret = report_secret
        self._name = name
        self._server = tuple(server)
        self._replica: VllmReplica | None = None

    async def place(self) -> ProcessPlace:
        """Return the actor's place, which it has once it answers."""
        import ray

        return ProcessPlace(node=ray.get_runtime_context().get_node_id(), pid=os.getpid())

    async def start(self) -> Start:
        """Start the server and return when it is ready."""
        try:
            # In a thread: it may generate the demo model.
            self._replica = await asyncio.to_thread(self._make_replica)
            await self._replica.start()
        except (EngineError, SettingsError, OSError) as error:
            return Start(problem=str(error))
        return Start(
            base_url=self._replica.base_url,
            report_endpoints=self._replica.report_endpoints,
            tool_parser=self._replica.tool_parser,
        )

    async def ended(self) -> str:
        """Wait for the server's end and return its reason in one line."""
        replica = self._started()
        while replica.is_alive():  # noqa: ASYNC110 - the process is polled
            await asyncio.sleep(WATCH_PERIOD_S)
        return replica.failure() or f"{self._name} was stopped"

    async def stop(self) -> None:
        """Drain and end the server."""
        await self._started().stop()

    async def kill(self, reason: str) -> None:
        """Kill the server."""
        await self._started().kill(reason)

    def _make_replica(self) -> VllmReplica:
        import ray

        key, host = self._settings.engine.api_key, ray.util.get_node_ip_address()
        environment = {REPORT_SECRET_VARIABLE: self._report_secret}
        if key is not None:
            # Others can reach this server, so it requires the gateway's key.
            environment["VLLM_API_KEY"] = key
        shown = f"[{host}]" if ":" in host else host
        return VllmReplica(
            self._settings,
            name=self._name,
            host=host,
            environment=environment,
            server=self._server,
            report_address=f"tcp://{shown}:{free_port(host)}",
        )

    def _started(self) -> VllmReplica:
        assert self._replica is not None, "start() comes first"
        return self._replica
