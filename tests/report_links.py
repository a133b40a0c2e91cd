"""The ends of report links, for tests: an engine's server, gateways that are nothing else, and a listener."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import zmq
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until

from autellix_backend.engines.report_client import LinkState, ReportClient
from autellix_backend.reports.link import END_OF_TOPIC, FACTS_TOPIC, SNAPSHOT_TOPIC, EngineFacts
from autellix_backend.vllm_plugin.report_server import ReportServer

SECRET = "a secret of sixteen characters"
FACTS = EngineFacts(
    engine="e1", version="1", vllm="0.32.0", policy="boost", has_admission=True, slots=4, kv_tokens=4096
)


class Raw(bytes):
    """A message for a report server as it is sent."""

    def to_bytes(self) -> bytes:
        """Return it."""
        return self


def free_address() -> str:
    """Return a report address on this machine at which nothing listens."""
    return f"tcp://127.0.0.1:{free_port()}"


@contextmanager
def serving(
    address: str, secret: str | None = SECRET, facts: Callable[[], EngineFacts] = lambda: FACTS
) -> Iterator[ReportServer]:
    """Yield the server of an engine."""
    server = ReportServer(address, secret, facts)
    try:
        yield server
    finally:
        server.close()


class Overheard:
    """The reports and snapshots of engines on this machine, for whichever gateway they are."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def next_message(self) -> bytes:
        """Return the next report or snapshot."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            topic, content = self._next_frame(deadline_s, "a report or a snapshot")
            if topic != FACTS_TOPIC:
                return content

    def next_report(self) -> bytes:
        """Return the next report; between reports an engine tells of its queues."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            topic, content = self._next_frame(deadline_s, "a report")
            if topic not in (FACTS_TOPIC, SNAPSHOT_TOPIC):
                return content

    def await_engines(self, count: int) -> None:
        """Wait until so many ranks have told their facts: they do so to each gateway that they have heard."""
        deadline_s, heard = time.monotonic() + PATIENCE_S, set[int]()
        while len(heard) < count:
            awaited = f"the facts of {count} ranks, of which {sorted(heard)} have come,"
            topic, content = self._next_frame(deadline_s, awaited)
            if topic == FACTS_TOPIC:
                heard.add(EngineFacts.from_bytes(content).rank)

    def _next_frame(self, deadline_s: float, awaited: str) -> tuple[bytes, bytes]:
        left_s = max(0.0, deadline_s - time.monotonic())
        assert self._socket.poll(int(1000 * left_s)), f"{awaited} did not come within {PATIENCE_S:.0f} s"
        topic, _, content = self._socket.recv().partition(END_OF_TOPIC)
        return topic, content


@contextmanager
def overhearing(*addresses: str, are_running: bool = True) -> Iterator[Overheard]:
    """Yield what engines on this machine send from here on.

    Args:
        addresses: The report addresses of their ranks.
        are_running: Whether they listen by now; then each is known to have heard us, so that nothing is
            missed. One that starts later has to wait for its gateways.
    """
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        listener: Any = socket
        listener.linger = 0
        listener.subscribe(b"")
        for address in addresses:
            listener.connect(address)
        overheard = Overheard(listener)
        if are_running:
            overheard.await_engines(len(addresses))
        yield overheard


class LinkedGateway:
    """A gateway that only listens to engines."""

    def __init__(self, secret: str | None = SECRET, name: str = "g1") -> None:
        self.messages: list[bytes] = []
        self.states: list[LinkState] = []
        self.client = ReportClient(
            secret,
            name,
            on_message=self.messages.append,
            on_change=lambda: self.states.append(self.client.state),
        )

    async def reaches(self, state: LinkState) -> None:
        """Wait for a state of the link."""
        await until(lambda: self.client.state is state)

    async def has(self, *messages: bytes) -> None:
        """Wait until exactly these messages have come."""
        await until(lambda: len(self.messages) >= len(messages))
        assert self.messages == list(messages)


@asynccontextmanager
async def linked(
    *addresses: str, secret: str | None = SECRET, name: str = "g1"
) -> AsyncIterator[LinkedGateway]:
    """Yield a gateway that is connected to the ranks of an engine."""
    gateway = LinkedGateway(secret, name)
    gateway.client.open(addresses)
    try:
        yield gateway
    finally:
        await gateway.client.close()
