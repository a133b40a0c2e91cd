"""The gateway's end of a report link: it subscribes to an engine's facts, snapshots and reports, over ZeroMQ.

CONNECTING ──the engine tells its facts──► UP ──the connection ends──► LOST ──it tells them──► UP
CONNECTING, LOST ──► ABSENT    nothing listens at the report address
CONNECTING, LOST ──► REFUSED   something does, and refuses us: the secrets are not equal
CONNECTING, LOST ──► OTHER     it speaks another protocol of reports

ZeroMQ connects again by itself. Each data-parallel rank of the engine has an address of its own; one socket
is connected to all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.link import (
    END_OF_TOPIC,
    END_TOPIC,
    FACTS_TOPIC,
    IPC,
    MAX_UPSTREAM_BYTES,
    SNAPSHOT_TOPIC,
    EngineFacts,
    OtherProtocolError,
    link_key,
    report_topic,
)

ROUND_BYTES = 256 * 1024
"""Bytes read per callback before other work may run; a snapshot of a megabyte takes milliseconds."""
MESSAGE_BYTES = 1024
"""Overhead counted per message beyond its own bytes."""
EVENTS = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
SUBSCRIBE = b"\1"
OPTIONS = {
    # Messages that wait for the event loop; an engine that sends more waits, and then drops its own.
    zmq.RCVHWM: 16_384,
    zmq.MAXMSGSIZE: 2**20,
    zmq.IPV6: 1,
    # In milliseconds.
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.RECONNECT_IVL: 200,
    zmq.RECONNECT_IVL_MAX: 2_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
}
"""Options of the ZeroMQ socket."""

logger = logging.getLogger(__name__)


class LinkState(enum.StrEnum):
    """The state of a report link."""

    CONNECTING = "connecting"
    UP = "up"
    LOST = "lost"
    ABSENT = "absent"
    REFUSED = "refused"
    OTHER = "other"


class ReportClient:
    """A connection to one engine's reports that survives restarts of either side."""

    def __init__(
        self,
        secret: str | None,
        gateway: str,
        *,
        on_message: Callable[[bytes], None],
        on_change: Callable[[], None],
    ) -> None:
        """Create a closed connection.

        Args:
            secret: The one that the engine shares with its gateways; unused for one on this machine.
            gateway: The id that our calls name.
            on_message: Is called with each report and snapshot; must not raise.
            on_change: Is called after each change of the state or of the facts.
        """
        self.endpoints: tuple[str, ...] = ()
        """The addresses of the engine's ranks, once it is open."""
        self.has_secret = secret is not None
        """Whether we have a secret to show."""
        self._secret = secret
        self._topics = (FACTS_TOPIC, SNAPSHOT_TOPIC, report_topic(gateway))
        self._on_message = on_message
        self._on_change = on_change
        self.state = LinkState.CONNECTING
        self.facts: dict[int, EngineFacts] = {}
        """The engine's facts by rank; kept while the link is lost."""
        self.misunderstanding = ""
        """Why its protocol is another one, once it is."""
        self._context: Any = None
        self._socket: Any = None
        self._monitor: Any = None
        self._next_round: Any = None
        self._settled = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether the engine answers."""
        return self.state is LinkState.UP

    @property
    def degraded(self) -> EngineFacts | None:
        """The facts of the first rank that runs vLLM's own order; None where our scheduler orders calls."""
        return next((self.facts[rank] for rank in sorted(self.facts) if self.facts[rank].is_degraded), None)

    @property
    def runs_own_order(self) -> bool:
        """Whether the engine leaves all calls to vLLM's own order, and so reports none."""
        return bool(self.facts) and all(facts.is_degraded for facts in self.facts.values())

    @property
    def is_local(self) -> bool:
        """Whether the engine listens at a socket of this machine."""
        return self.address.startswith(IPC)

    @property
    def address(self) -> str:
        """The address of the engine's first rank."""
        return self.endpoints[0] if self.endpoints else "the report port"

    @property
    def first_facts(self) -> EngineFacts | None:
        """The facts of the engine's first rank."""
        return self.facts[min(self.facts)] if self.facts else None

    async def settled(self, timeout_s: float) -> None:
        """Return once the link has a state other than CONNECTING, or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()

    def open(self, endpoints: Sequence[str]) -> None:
        """Connect to the addresses of an engine's ranks (`tcp://10.0.0.1:9000`), in the event loop.

        A second call connects again, unless reports arrive from there: another server may have taken the
        engine's place, and ZeroMQ does not return to one that wanted a secret.
        """
        if self._context is not None and self.is_up and self.endpoints == tuple(endpoints):
            return
        self._disconnect()
        self.endpoints = tuple(endpoints)
        self._settled.clear()
        self._become(LinkState.CONNECTING)
        self._context = zmq.Context()
        self._socket = self._make_socket()
        self._monitor = self._socket.get_monitor_socket(EVENTS)
        # In place of `zmq.asyncio`, whose futures cost as much again as all else of a report. A descriptor
        # shows nothing until its socket was once found empty: the monitor here, the other when connected.
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.fd, self._read)
        loop.add_reader(self._monitor.fd, self._watch)
        self._watch()
        for endpoint in self.endpoints:
            try:
                self._socket.connect(endpoint)
            except zmq.ZMQError as error:
                logger.warning("report port %s: %s", endpoint, error)
        self._next_round = loop.call_soon(self._read)

    def end_program(self, program_id: str) -> None:
        """Let the engine know that a program has ended, if it is connected; never blocks."""
        frame = END_TOPIC + END_OF_TOPIC + program_id.encode(errors="replace")
        if self._context is None or not self.is_up or len(frame) > MAX_UPSTREAM_BYTES:
            return
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(frame, zmq.NOBLOCK)
        # Sending may use up what the descriptor shows of new messages.
        self._next_round.cancel()
        self._next_round = asyncio.get_running_loop().call_soon(self._read)

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        self._disconnect()

    def _disconnect(self) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fd)
        loop.remove_reader(self._monitor.fd)
        self._next_round.cancel()
        context.destroy(linger=0)

    def _make_socket(self) -> Any:
        # Unlike SUB, it can also send.
        socket: Any = self._context.socket(zmq.XSUB)
        if self._secret is not None and not self.is_local:
            public, private = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, private)
            server = zmq.curve_public(z85.encode(link_key(self._secret)))
            socket.setsockopt(zmq.CURVE_SERVERKEY, server)
        for option, value in OPTIONS.items():
            socket.setsockopt(option, value)
        for topic in self._topics:
            socket.send(SUBSCRIBE + topic + END_OF_TOPIC)
        return socket

    def _read(self) -> None:
        # The descriptor shows new messages once, so all are read, in rounds.
        self._next_round.cancel()
        left_bytes = ROUND_BYTES
        with contextlib.suppress(zmq.Again):
            while left_bytes > 0:
                message = self._socket.recv(zmq.NOBLOCK)
                self._take(message)
                left_bytes -= MESSAGE_BYTES + len(message)
            self._next_round = asyncio.get_running_loop().call_soon(self._read)

    def _take(self, message: bytes) -> None:
        topic, _, content = message.partition(END_OF_TOPIC)
        if topic == FACTS_TOPIC:
            self._hear(content)
        elif self.state is not LinkState.OTHER:
            # Those of another protocol could mean something else.
            self._on_message(content)

    def _hear(self, content: bytes) -> None:
        try:
            facts = EngineFacts.from_bytes(content)
        except OtherProtocolError as error:
            self.misunderstanding = str(error)
            self._become(LinkState.OTHER)
            return
        except ReportError as error:
            logger.warning("%s: %s", self.address, error)
            return
        known = self.facts.get(facts.rank)
        self.facts[facts.rank] = facts
        is_new = known is None or (known.engine, known.is_degraded) != (facts.engine, facts.is_degraded)
        self._become(LinkState.UP, is_news=is_new)

    def _watch(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                self._observe(parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"])

    def _observe(self, event: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            if self.is_up:
                # The other ranks tell their facts within a second.
                self._become(LinkState.LOST)
            elif self.state is LinkState.CONNECTING:
                # Something that knows nothing of ZeroMQ.
                self._become(LinkState.ABSENT)
        elif event == zmq.EVENT_CLOSED:
            if not self.is_up or len(self.endpoints) == 1:
                self._become(LinkState.ABSENT)
        elif not self.is_up:
            # Whoever ends the handshake first decides how it fails, so its kind means nothing.
            self._become(LinkState.REFUSED)

    def _become(self, state: LinkState, *, is_news: bool = False) -> None:
        if state is self.state and not is_news:
            return
        self.state = state
        if state is not LinkState.CONNECTING:
            self._settled.set()
        self._on_change()
