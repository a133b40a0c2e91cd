from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, wait_until

from autellix_backend.vllm_plugin import report_sender as accounting
from autellix_backend.vllm_plugin.report_sender import ReportSender


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "a.sock"))
        receiver.settimeout(PATIENCE_S)
        yield receiver


def test_sends_to_the_socket(receiver: socket.socket) -> None:
    """A message arrives as one datagram."""
    sender = ReportSender(receiver.getsockname())
    sender.send(b"one")
    assert receiver.recv(100) == b"one"
    sender.close()
    sender.send(b"again")
    assert receiver.recv(100) == b"again"
    assert sender.dropped_records == 0
    sender.close()


def test_messages_that_do_not_fit_a_full_socket_arrive_later(receiver: socket.socket) -> None:
    """A receiver that does not read never blocks the sender, and misses nothing, in order."""
    sender = ReportSender(receiver.getsockname())
    messages = [str(number).encode() for number in range(500)]
    for message in messages:
        sender.send(message)
    assert [receiver.recv(100) for _ in messages] == messages
    assert sender.dropped_records == 0
    sender.send(b"after")
    assert receiver.recv(100) == b"after"
    sender.close()


def test_counts_what_it_cannot_keep(receiver: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MAX_PENDING", 20)
    sender = ReportSender(receiver.getsockname())
    messages = [str(number).encode() * 1000 for number in range(100, 300)]
    for message in messages:
        sender.send(message)
    kept = messages[: -sender.dropped_records]
    assert [receiver.recv(9999) for _ in kept] == kept
    assert 0 < len(kept) < 100


def test_a_receiver_that_goes_away_costs_its_messages(receiver: socket.socket) -> None:
    sender = ReportSender(receiver.getsockname())
    for _ in range(100):
        sender.send(b"x" * 1000)
    Path(receiver.getsockname()).unlink()
    receiver.close()
    wait_until(lambda: not sender._pending)
    assert sender.dropped_records > 0


def test_counts_what_nobody_receives(tmp_path: Path) -> None:
    """An address without a receiver is no error."""
    sender = ReportSender(str(tmp_path / "nobody.sock"))
    sender.send(b"lost")
    assert sender.dropped_records == 1
    sender.close()


def test_drops_a_path_that_is_no_address() -> None:
    """A path too long for a socket address is dropped like an absent receiver."""
    sender = ReportSender("/tmp/" + "x" * 300)
    sender.send(b"lost")
    assert sender.dropped_records == 1
    sender.close()


def test_without_an_address_nothing_is_sent_or_dropped() -> None:
    """Without a socket there are no reports, and none count as lost."""
    sender = ReportSender(None)
    assert not sender.is_enabled
    sender.send(b"x")
    assert sender.dropped_records == 0
