"""Publishes an engine's reports and snapshots to the gateways that subscribe to them.

The engine's loop only appends to a queue; a thread of its own encodes the messages and owns the sockets. A
gateway that reads slowly loses messages, which are counted. Without the secret, a client can only connect:
such a connection holds 14 KiB until its handshake times out.
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
from typing import Any, Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from autellix_backend.reports.link import (
    END_OF_TOPIC,
    END_TOPIC,
    FACTS_TOPIC,
    IPC,
    MAX_UPSTREAM_BYTES,
    SNAPSHOT_TOPIC,
    EngineFacts,
    link_key,
    report_topic,
)

MAX_PENDING = 65_536
"""Messages that wait for the thread."""
MAX_UNSENT = 4_096
"""Messages that wait for one gateway."""
MAX_ENDS = 4_096
"""Ends of programs that wait for the engine's loop; it learns of those before with later calls."""
LINGER_MS = 500
"""How long the last reports may take once the engine ends."""
FACTS_PERIOD_MS = 1_000
COMPLAINT_PERIOD_S = 60.0
JOIN_S = 3.0
MAX_ROUND = 1_000
"""Messages of one kind that are read in a row."""
OPTIONS = {
    zmq.MAXMSGSIZE: MAX_UPSTREAM_BYTES,
    zmq.SNDHWM: MAX_UNSENT,
    # Every gateway that subscribes is told the facts.
    zmq.XPUB_VERBOSE: 1,
    zmq.IPV6: 1,
    # In milliseconds. A gateway whose machine is gone leaves no other trace.
    zmq.HANDSHAKE_IVL: 2_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
    zmq.LINGER: LINGER_MS,
}
"""Options of the ZeroMQ socket."""

# Below vLLM's own logger, whose handler shows it.
logger = logging.getLogger("vllm.autellix")


class Message(Protocol):
    """A report or a snapshot, which the thread encodes; it must not change any more."""

    def to_bytes(self) -> bytes:
        """Return it as one message."""
        ...


class ReportServer:
    """The engine's end of the report links."""

    def __init__(self, address: str, secret: str | None, facts: Callable[[], EngineFacts]) -> None:
        """Bind the address and start the thread.

        Args:
            address: Where to listen, as `tcp://0.0.0.0:9000`, or `ipc://` and a path in a private folder.
            secret: What gateways have to know of an engine at a port. Without one nobody gets through: from
                the port, gateways then only learn that a secret is missing here.
            facts: Returns what gateways learn of the engine; called in the thread.
        """
        self._address = address
        self._facts = facts
        self._pending: deque[tuple[bytes, Message]] = deque()
        self._topics: set[bytes] = set()
        self._ends: deque[str] = deque(maxlen=MAX_ENDS)
        self.dropped_records = 0
        """The messages that could not be sent so far."""
        self._complaints: dict[str, float] = {}
        self._is_closed = False
        self._is_holding = False
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = zmq.Context()
        self._socket = self._open(secret)
        self._refusals: Any = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self.is_listening = self._listen()
        """Whether gateways can connect."""
        if secret is None and not address.startswith(IPC):
            self._complain(
                f"reports to gateways are off: AUTELLIX_ENGINE_REPORT_SECRET is not set ({address})"
            )
        elif self.is_listening:
            logger.info("Autellix: gateways get reports at %s", address)
        self._thread = threading.Thread(target=self._run, name="autellix-reports", daemon=True)
        self._thread.start()

    @property
    def has_gateways(self) -> bool:
        """Whether any gateway is connected."""
        return bool(self._topics)

    def is_connected(self, gateway: str) -> bool:
        """Whether a gateway is connected."""
        return report_topic(gateway) + END_OF_TOPIC in self._topics

    def send(self, gateway: str, report: Message) -> None:
        """Send a report to one gateway soon, if it is connected. Never blocks: drops if too many wait."""
        self._put(report_topic(gateway), report)

    def broadcast(self, snapshot: Message) -> None:
        """Send a snapshot to all gateways soon. Never blocks: drops if too many wait."""
        self._put(SNAPSHOT_TOPIC, snapshot)

    def hold(self) -> None:
        """Leave the thread asleep until `release`: once awake, it wants the interpreter lock."""
        self._is_holding = True

    def release(self) -> None:
        """Have the thread send what has come since `hold`."""
        self._is_holding = False
        if self._pending:
            os.eventfd_write(self._wakeup, 1)

    def take_ends(self) -> Iterator[str]:
        """Yield the programs that gateways have ended since the last time."""
        while self._ends:
            yield self._ends.popleft()

    def close(self) -> None:
        """Send what waits, within a bound, and stop listening. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            os.eventfd_write(self._wakeup, 1)
        self._thread.join(JOIN_S)

    def _put(self, topic: bytes, content: Message) -> None:
        if len(self._pending) >= MAX_PENDING or self._is_closed:
            self.dropped_records += 1
            return
        self._pending.append((topic, content))
        # Behind another one, it is taken with that.
        if len(self._pending) <= 1 and not self._is_holding:
            os.eventfd_write(self._wakeup, 1)

    def _open(self, secret: str | None) -> Any:
        publisher: Any = self._context.socket(zmq.XPUB)
        for option, value in OPTIONS.items():
            publisher.setsockopt(option, value)
        if not self._address.startswith(IPC):
            publisher.setsockopt(zmq.CURVE_SERVER, 1)
            # A random key without a secret: its public half is known to nobody.
            publisher.setsockopt(zmq.CURVE_SECRETKEY, os.urandom(32) if secret is None else link_key(secret))
        return publisher

    def _listen(self) -> bool:
        try:
            self._socket.bind(self._address)
        except zmq.ZMQError as error:
            self._complain(f"cannot listen at {self._address} ({error}): gateways get no reports")
            return False
        return True

    # What follows runs in the thread, which alone touches the sockets.

    def _run(self) -> None:
        poller, told_s = zmq.Poller(), -math.inf
        for each in (self._wakeup, self._socket, self._refusals):
            poller.register(each, zmq.POLLIN)
        try:
            while not self._is_closed:
                ready = dict(poller.poll(FACTS_PERIOD_MS))
                if self._wakeup in ready:
                    os.eventfd_read(self._wakeup)
                self.is_listening = self.is_listening or self._listen()
                if self._refusals in ready:
                    self._read_refusals()
                is_new = self._socket in ready and self._read_gateways()
                if is_new or time.monotonic() - told_s >= FACTS_PERIOD_MS / 1000:
                    self._transmit(FACTS_TOPIC, self._facts().to_bytes())
                    told_s = time.monotonic()
                self._deliver()
            self._deliver()
        except Exception:
            # A thread's boundary: the engine goes on without reports, and its calls are charged by tokens.
            logger.exception("Autellix: reports to gateways have ended")
            self._is_closed = True
            self._topics.clear()
        finally:
            self._socket.disable_monitor()
            self._refusals.close(0)
            self._socket.close(LINGER_MS)
            self._context.term()

    def _read_gateways(self) -> bool:
        """Note who subscribes to what, and which programs have ended; return whether somebody is new."""
        is_new = False
        for [frame] in self._receive(self._socket):
            topic, _, content = frame.partition(END_OF_TOPIC)
            if frame[:1] == b"\1":
                self._topics.add(frame[1:])
                is_new = True
            elif frame[:1] == b"\0":
                self._topics.discard(frame[1:])
            elif topic == END_TOPIC:
                self._ends.append(content.decode(errors="replace"))
        return is_new

    def _deliver(self) -> None:
        while self._pending:
            topic, message = self._pending.popleft()
            self._transmit(topic, message.to_bytes())

    def _transmit(self, topic: bytes, content: bytes) -> None:
        # The next snapshot replaces one for which a gateway has no room; it must not stop it for the others.
        self._socket.setsockopt(zmq.XPUB_NODROP, topic is not SNAPSHOT_TOPIC)
        try:
            self._socket.send(topic + END_OF_TOPIC + content, zmq.NOBLOCK)
        except zmq.ZMQError:
            self.dropped_records += 1

    def _read_refusals(self) -> None:
        for frames in self._receive(self._refusals):
            is_other_key = parse_monitor_message(frames)["value"] == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
            what = "with another engine.report_secret" if is_other_key else "without engine.report_secret"
            self._complain(f"a connection was refused at {self._address}: a gateway {what}, or none of ours")

    def _complain(self, text: str) -> None:
        """Log a warning, the same one at most once a minute."""
        now = time.monotonic()
        if now - self._complaints.get(text, -math.inf) >= COMPLAINT_PERIOD_S:
            self._complaints[text] = now
            logger.warning("Autellix: %s", text)

    @staticmethod
    def _receive(socket: Any) -> Iterator[list[bytes]]:
        """Yield what has come, up to a bound: the rest is for the next round."""
        with contextlib.suppress(zmq.Again):
            for _ in range(MAX_ROUND):
                yield socket.recv_multipart(zmq.NOBLOCK)
