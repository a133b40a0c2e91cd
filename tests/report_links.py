"""The ends of report links, for tests: an engine's server, gateways that are nothing else, and a listener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import zmq
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until

from autellix_backend.engines.report_client import LinkState, ReportClient
from autellix_backend.reports.link import END_OF_TOPIC, FACTS_TOPIC, EngineFacts
from autellix_backend.vllm_plugin.report_server import ReportServer

SECRET = "a secret of sixteen characters"
FACTS = EngineFacts(
    engine="e1", version="1", vllm="0.32.0", policy="boost", has_admission=True, slots=4, kv_tokens=4096
)


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


@contextmanager
def overhearing(*addresses: str) -> Iterator[Callable[[], bytes]]:
    """Yield a function that returns the next report or snapshot of engines on this machine, for whomever."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        listener: Any = socket
        listener.linger, listener.rcvtimeo = 0, int(1000 * PATIENCE_S)
        listener.subscribe(b"")
        for address in addresses:
            listener.connect(address)

        def next_message() -> bytes:
            while True:
                topic, _, content = listener.recv().partition(END_OF_TOPIC)
                if topic != FACTS_TOPIC:
                    return bytes(content)

        yield next_message


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
