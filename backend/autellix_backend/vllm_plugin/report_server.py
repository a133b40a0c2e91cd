"""Sends reports and snapshots over the network, to the gateways that connect to this engine.

The engine's loop only appends to a queue; a thread of its own owns the sockets. A gateway that reads slowly
loses messages, which are counted, and one that is silent for a while is forgotten. Without the secret, a
client can only connect: such a connection holds 14 KiB until its handshake times out, and beyond
MAX_CONNECTIONS at once the port closes for a while. That ends the connections of gateways too: a flood can
cost reports, but not the engine.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.link import (
    ENGINE,
    HELLO,
    LOST_S,
    MAX_HELLO_BYTES,
    MESSAGE,
    EngineFacts,
    GatewayHello,
    OtherProtocolError,
    link_key,
)

MAX_GATEWAYS = 256
MAX_CONNECTIONS = 4_096
MAX_PENDING = 65_536
"""Messages that wait for the thread."""
MAX_UNSENT = 4_096
"""Messages that wait for one gateway."""
HANDSHAKE_MS = 2_000
CLOSED_S = 2.0
"""How long the port stays closed after too many connections."""
LINGER_MS = 500
"""How long the last reports may take once the engine ends."""
COMPLAINT_PERIOD_S = 60.0
MAX_COMPLAINTS = 64
POLL_MS = 1_000
JOIN_S = 3.0
MAX_ROUND = 1_000
"""Messages of one kind that are read in a row."""
_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_NO_SECRET = "a gateway without engine.report_secret, or none of ours"
_REFUSALS: dict[int, str] = {
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "a gateway with another engine.report_secret",
}

# Below vLLM's own logger, whose handler shows it.
logger = logging.getLogger("vllm.autellix")


def port_of_rank(address: str, rank: int) -> str:
    """Return the address of a data-parallel rank: the port of the first one, plus the rank."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + rank}"


@dataclass(slots=True)
class _Peer:
    """A connected gateway."""

    route: bytes
    heard_s: float


class ReportServer:
    """The engine's end of the report links."""

    def __init__(self, address: str, secret: str | None, facts: Callable[[], EngineFacts]) -> None:
        """Bind the address and start the thread.

        Args:
            address: Where to listen, as `tcp://0.0.0.0:9000`.
            secret: What gateways have to know. Without one nobody gets through: from the port, gateways then
                only learn that a secret is missing here.
            facts: Returns the answer to a hello; called in the thread.
        """
        self._address = address
        self._facts = facts
        self._pending: deque[tuple[str | None, bytes]] = deque()
        self._peers: dict[str, _Peer] = {}
        self._latest: bytes | None = None
        self.dropped_records = 0
        self._connections = 0
        self._closed_until_s = 0.0
        self._complaints: dict[str, float] = {}
        self._is_closed = False
        """Whether nothing is sent any more."""
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = zmq.Context()
        self._router = self._open(secret)
        self._monitor = self._watch()
        self.is_listening = self._listen()
        """Whether gateways can connect."""
        if secret is None:
            logger.warning(
                "Autellix: reports to gateways are off: AUTELLIX_ENGINE_REPORT_SECRET is not set (%s)",
                address,
            )
        elif self.is_listening:
            logger.info("Autellix: gateways with the secret get reports at %s", address)
        self._thread = threading.Thread(target=self._run, name="autellix-report-server", daemon=True)
        self._thread.start()

    @property
    def has_gateways(self) -> bool:
        """Whether any gateway is connected."""
        return bool(self._peers)

    def is_connected(self, gateway: str) -> bool:
        """Whether a gateway is connected."""
        return gateway in self._peers

    def send(self, gateway: str, message: bytes) -> None:
        """Send a message to one gateway soon; drop it if too many wait. Never blocks."""
        self._put(gateway, message)

    def broadcast(self, message: bytes) -> None:
        """Send a message to all gateways soon, and to each that connects later until the next one."""
        self._put(None, message)

    def close(self) -> None:
        """Send what waits, within a bound, and close the port. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            os.eventfd_write(self._wakeup, 1)
        self._thread.join(JOIN_S)

    def _put(self, gateway: str | None, message: bytes) -> None:
        if len(self._pending) >= MAX_PENDING or self._is_closed:
            self.dropped_records += 1
        else:
            self._pending.append((gateway, message))
            os.eventfd_write(self._wakeup, 1)

    # What follows runs in the thread, which alone touches the sockets.

    def _open(self, secret: str | None) -> Any:
        router: Any = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        # A random key without a secret: its public half is known to nobody.
        router.setsockopt(zmq.CURVE_SECRETKEY, os.urandom(32) if secret is None else link_key(secret))
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_HELLO_BYTES)
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        router.setsockopt(zmq.SNDHWM, MAX_UNSENT)
        router.setsockopt(zmq.RCVHWM, 16)
        # A gateway whose machine is gone leaves no other trace.
        router.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
        router.setsockopt(zmq.LINGER, LINGER_MS)
        router.setsockopt(zmq.IPV6, 1)
        return router

    def _watch(self) -> Any:
        """Return a socket that receives the events of connections."""
        address = f"inproc://{id(self)}"
        monitor = self._context.socket(zmq.PAIR)
        # Without a bound, as libzmq would wait for room and hold up all connections.
        monitor.setsockopt(zmq.RCVHWM, 0)
        self._router.monitor(address, _EVENTS)
        monitor.connect(address)
        return monitor

    def _listen(self) -> bool:
        try:
            self._router.bind(self._address)
        except zmq.ZMQError as error:
            self._complain(f"cannot listen at {self._address} ({error}): gateways get no reports")
            self._closed_until_s = time.monotonic() + CLOSED_S
            return False
        return True

    def _run(self) -> None:
        poller = zmq.Poller()
        for each in (self._wakeup, self._router, self._monitor):
            poller.register(each, zmq.POLLIN)
        try:
            while not self._is_closed:
                ready = dict(poller.poll(POLL_MS))
                if self._wakeup in ready:
                    os.eventfd_read(self._wakeup)
                now = time.monotonic()
                self._read_events(now)
                self._read_hellos(now)
                self._deliver()
                self._forget_silent(now)
                self._reopen(now)
            self._deliver()
        except Exception:
            # A thread's boundary: the engine goes on without reports, and its calls are charged by tokens.
            logger.exception("Autellix: reports to gateways have ended")
            self._is_closed = True
            self._peers.clear()
        finally:
            self._router.monitor(None, 0)
            self._monitor.close(0)
            self._router.close(LINGER_MS)
            self._context.term()

    def _read_hellos(self, now: float) -> None:
        for frames in self._receive(self._router):
            if len(frames) == 3 and frames[1] == HELLO:
                self._answer(frames[0], frames[2], now)

    def _answer(self, route: bytes, content: bytes, now: float) -> None:
        try:
            gateway = GatewayHello.from_bytes(content).gateway
        except OtherProtocolError as error:
            # The gateway learns the same from our facts.
            self._complain(f"a gateway gets no reports at {self._address}: {error}")
            self._transmit(route, ENGINE, self._facts().to_bytes())
            return
        except ReportError as error:
            self._complain(str(error))
            return
        peer = self._peers.get(gateway)
        if peer is None and len(self._peers) >= MAX_GATEWAYS:
            self._complain(f"more than {MAX_GATEWAYS} gateways; the others get no reports")
            return
        self._transmit(route, ENGINE, self._facts().to_bytes())
        if peer is None or peer.route != route:
            if self._latest is not None:
                self._transmit(route, MESSAGE, self._latest)
            peer = self._peers[gateway] = _Peer(route, now)
        peer.heard_s = now

    def _deliver(self) -> None:
        while self._pending:
            gateway, message = self._pending.popleft()
            if gateway is None:
                self._latest = message
                for each in self._peers.values():
                    self._transmit(each.route, MESSAGE, message)
            elif (peer := self._peers.get(gateway)) is not None:
                self._transmit(peer.route, MESSAGE, message)
            else:
                self.dropped_records += 1

    def _transmit(self, route: bytes, kind: bytes, content: bytes) -> None:
        try:
            self._router.send_multipart([route, kind, content], zmq.NOBLOCK)
        except zmq.ZMQError:
            # It has no room, or is gone.
            self.dropped_records += 1

    def _forget_silent(self, now: float) -> None:
        for gateway, peer in list(self._peers.items()):
            if now - peer.heard_s >= LOST_S:
                del self._peers[gateway]
        if not self._peers:
            # Without gateways no snapshots are made, so this one would grow stale.
            self._latest = None

    def _read_events(self, now: float) -> None:
        for frames in self._receive(self._monitor):
            event = parse_monitor_message(frames)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._connections += 1
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self._connections = max(0, self._connections - 1)
            else:
                reason = _REFUSALS.get(int(event["value"]), _NO_SECRET)
                self._complain(f"a connection was refused at {self._address}: {reason}")
        if self.is_listening and self._connections >= MAX_CONNECTIONS:
            self._complain(f"{self._connections} connections at {self._address}: it closes for a while")
            # It ends all connections, without events.
            self._router.unbind(self._address)
            self._connections = 0
            self.is_listening = False
            self._closed_until_s = now + CLOSED_S

    def _reopen(self, now: float) -> None:
        if not self.is_listening and now >= self._closed_until_s:
            self.is_listening = self._listen()

    def _complain(self, text: str) -> None:
        """Log a warning, the same one at most once a minute."""
        now = time.monotonic()
        if now - self._complaints.get(text, -math.inf) >= COMPLAINT_PERIOD_S:
            if len(self._complaints) >= MAX_COMPLAINTS:
                self._complaints.clear()
            self._complaints[text] = now
            logger.warning("Autellix: %s", text)

    @staticmethod
    def _receive(socket: Any) -> Iterator[list[bytes]]:
        """Yield what has come, up to a bound: the rest is for the next round."""
        with contextlib.suppress(zmq.Again):
            for _ in range(MAX_ROUND):
                yield socket.recv_multipart(zmq.NOBLOCK)
