"""The gateway's end of a report link: it receives the reports of an engine elsewhere, over ZeroMQ.

CONNECTING ──the engine answers──► UP ──it falls silent──► LOST ──it answers──► UP
CONNECTING, LOST ──► ABSENT    nothing listens at the report port
CONNECTING, LOST ──► REFUSED   something does, and our secret is not its own
CONNECTING, LOST ──► LOCKED    it wants a secret, and we have none
CONNECTING, LOST ──► OTHER     it speaks another protocol of reports

ZeroMQ connects again by itself. Each data-parallel rank of the engine has a port of its own; one socket is
connected to all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib.metadata
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.link import (
    ENGINE,
    HELLO,
    HELLO_PERIOD_S,
    LOST_S,
    MESSAGE,
    EngineFacts,
    GatewayHello,
    OtherProtocolError,
    link_key,
)

MAX_MESSAGE_BYTES = 2**20
MAX_QUEUED = 16_384
"""Messages that wait here for the event loop; an engine that sends more waits, and then drops its own."""
MAX_ROUND = 256
"""Messages that are read in a row: an engine's flood must not hold up calls."""
MAX_ROUND_BYTES = 256 * 1024
"""Of the same: a snapshot of a megabyte takes milliseconds."""
EVENTS = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
OPTIONS = {
    # Nothing is kept for an engine that is not there.
    zmq.IMMEDIATE: 1,
    zmq.LINGER: 0,
    zmq.SNDHWM: 16,
    zmq.RCVHWM: MAX_QUEUED,
    zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
    # In milliseconds.
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.RECONNECT_IVL: 200,
    zmq.RECONNECT_IVL_MAX: 2_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
    zmq.IPV6: 1,
}
"""Of the socket."""

logger = logging.getLogger(__name__)


class LinkState(enum.StrEnum):
    """The state of a report link."""

    CONNECTING = "connecting"
    UP = "up"
    LOST = "lost"
    ABSENT = "absent"
    REFUSED = "refused"
    LOCKED = "locked"
    OTHER = "other"


class ReportClient:
    """A connection to one engine's report port that survives restarts of either side."""

    def __init__(
        self,
        secret: str | None,
        gateway: str,
        *,
        on_message: Callable[[bytes], None],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a closed connection.

        Args:
            secret: The one that the engine shares with its gateways.
            gateway: The id that our calls name.
            on_message: Is called with each report and snapshot; must not raise.
            on_change: Is called after each change of the state or of the facts.
            clock: The time in seconds.
        """
        self.endpoints: tuple[str, ...] = ()
        """The addresses of the engine's ranks, once it is open."""
        self._secret = secret
        self._hello = GatewayHello(gateway=gateway, version=importlib.metadata.version("autellix")).to_bytes()
        self._on_message = on_message
        self._on_change = on_change
        self._clock = clock
        self.state = LinkState.CONNECTING
        self.facts: dict[int, EngineFacts] = {}
        """The engine's facts by rank; kept while the link is lost."""
        self.misunderstanding = ""
        """Why its protocol is another one, once it is."""
        self._heard_s: dict[int, float] = {}
        self._context: Any = None
        self._socket: Any = None
        self._monitor: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_next_round = False
        self._settled = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether reports arrive."""
        return self.state is LinkState.UP

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
        """Connect to the report ports of an engine's ranks (`tcp://10.0.0.1:9000`), in the event loop.

        A second call connects again, unless reports arrive: another server may have taken the engine's place.
        """
        if self._context is not None:
            self._retry()
            return
        self.endpoints = tuple(endpoints)
        self._context = zmq.Context()
        self._socket = self._make_socket()
        self._monitor = self._socket.get_monitor_socket(EVENTS)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.fd, self._read)
        loop.add_reader(self._monitor.fd, self._read_events)
        self._connect()
        self._tick()

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        if self._context is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fd)
        loop.remove_reader(self._monitor.fd)
        if self._timer is not None:
            self._timer.cancel()
        context, self._context = self._context, None
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._socket = self._monitor = None
        context.term()

    def _connect(self) -> None:
        for endpoint in self.endpoints:
            try:
                self._socket.connect(endpoint)
            except zmq.ZMQError as error:
                logger.warning("report port %s: %s", endpoint, error)

    def _retry(self) -> None:
        if self.is_up:
            return
        # ZeroMQ does not connect again to a server that wants a secret.
        for endpoint in self.endpoints:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(endpoint)
        self._read_events()
        self._settled.clear()
        self._become(LinkState.CONNECTING)
        self._connect()

    def _make_socket(self) -> Any:
        socket: Any = self._context.socket(zmq.DEALER)
        if self._secret is not None:
            public, private = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, private)
            server = zmq.curve_public(z85.encode(link_key(self._secret)))
            socket.setsockopt(zmq.CURVE_SERVERKEY, server)
        for option, value in OPTIONS.items():
            socket.setsockopt(option, value)
        return socket

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HELLO_PERIOD_S, self._tick)
        self._say_hello()
        self._read_events()
        self._forget_silent()

    def _say_hello(self) -> None:
        """Greet every rank: ZeroMQ hands messages to the connected ones in turn."""
        with contextlib.suppress(zmq.Again):
            for _ in self.endpoints:
                self._socket.send_multipart([HELLO, self._hello], zmq.NOBLOCK)
        # Sending may have cleared the descriptor's signal for messages that have arrived.
        self._read()

    def _forget_silent(self) -> None:
        now = self._clock()
        for rank, heard_s in list(self._heard_s.items()):
            if now - heard_s >= LOST_S:
                del self._heard_s[rank]
        if self.is_up and not self._heard_s:
            self._become(LinkState.LOST)

    def _read(self) -> None:
        # A round that is to come reads these too: two series of rounds would read twice as much in a row.
        if not self._has_next_round:
            self._read_round()

    def _read_round(self) -> None:
        # The descriptor shows new messages once, so all are read, in rounds.
        self._has_next_round = False
        if self._socket is None:
            return
        with contextlib.suppress(zmq.Again):
            left_bytes = MAX_ROUND_BYTES
            for _ in range(MAX_ROUND):
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
                self._take(frames)
                left_bytes -= sum(map(len, frames))
                if left_bytes <= 0:
                    break
            self._has_next_round = True
            asyncio.get_running_loop().call_soon(self._read_round)

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            return
        kind, content = frames
        if kind == MESSAGE:
            # Those of another protocol could mean something else.
            if self.state is not LinkState.OTHER:
                self._on_message(content)
        elif kind == ENGINE:
            self._hear(content)

    def _hear(self, content: bytes) -> None:
        try:
            facts = EngineFacts.from_bytes(content)
        except OtherProtocolError as error:
            self.misunderstanding = str(error)
            self._become(LinkState.OTHER)
            return
        except ReportError as error:
            logger.warning("%s: %s", self.endpoints[0], error)
            return
        known = self.facts.get(facts.rank)
        self.facts[facts.rank] = facts
        self._heard_s[facts.rank] = self._clock()
        is_new = known is None or (known.engine, known.is_degraded) != (facts.engine, facts.is_degraded)
        self._become(LinkState.UP, is_news=is_new)

    def _read_events(self) -> None:
        if self._monitor is None:
            return
        with contextlib.suppress(zmq.Again):
            while True:
                self._observe(parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK)))

    def _observe(self, event: Any) -> None:
        kind = event["event"]
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._say_hello()
        elif self.is_up:
            if kind == zmq.EVENT_DISCONNECTED and len(self.endpoints) == 1:
                self._heard_s.clear()
                self._become(LinkState.LOST)
        elif kind == zmq.EVENT_CLOSED or (
            kind == zmq.EVENT_DISCONNECTED and self.state is LinkState.CONNECTING
        ):
            # Nothing listens, or something that knows nothing of ZeroMQ.
            self._become(LinkState.ABSENT)
        elif kind in (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
            # Whoever ends the handshake first decides how it fails, so its kind means nothing.
            self._become(LinkState.LOCKED if self._secret is None else LinkState.REFUSED)

    def _become(self, state: LinkState, *, is_news: bool = False) -> None:
        if state is self.state and not is_news:
            return
        self.state = state
        if state is not LinkState.CONNECTING:
            self._settled.set()
        self._on_change()
