"""The receiver of reports, on the gateway's event loops."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.gateway.engine_reports import report_of
from tests.waiting import PATIENCE_S

from autellix_backend.engines import datagrams
from autellix_backend.engines.datagrams import DatagramReceiver
from autellix_backend.gateway.engines.report_receiver import ReportDecoder
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot

REPORT = report_of("c")
SNAPSHOT = EngineSnapshot(
    step=1,
    mean_step_s=None,
    running=0,
    waiting=0,
    slots=4,
    kv_used_blocks=0,
    kv_total_blocks=8,
    kv_block_tokens=16,
    is_block_short=False,
    level_calls=(0, 0),
    calls=(),
)


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_reports_and_snapshots_arrive_and_malformed_datagrams_are_counted(
    make_loop: Callable[[], asyncio.AbstractEventLoop], wait_until: Any
) -> None:
    async def main(path: Path) -> None:
        received: list[EngineReport] = []
        snapshots: list[EngineSnapshot] = []
        malformed: list[None] = []
        decoder = ReportDecoder(received.append, lambda: malformed.append(None), snapshots.append)
        receiver = DatagramReceiver(path, decoder)
        receiver.open()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for datagram in (
                REPORT.to_bytes(),
                b"{}",
                b"\xff",
                b"[]",
                SNAPSHOT.to_bytes(),
                SNAPSHOT.to_bytes()[:-1],
                REPORT.to_bytes(),
            ):
                sender.sendto(datagram, str(path))
        await wait_until(lambda: len(received) == 2 and len(malformed) == 4)
        assert received == [REPORT, REPORT]
        assert snapshots == [SNAPSHOT]
        receiver.close()
        receiver.close()

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=make_loop) as runner:
        path = Path(folder) / "a.sock"
        path.touch()  # what a killed gateway leaves behind
        runner.run(main(path))
        assert not path.exists()


async def test_a_flood_of_datagrams_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagrams, "MAX_ROUND", 1)
    received: list[bytes] = []
    most, before = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sock"
        receiver = DatagramReceiver(path, received.append)
        receiver.open()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for number in range(8):
                sender.sendto(b"%d" % number, str(path))
        async with asyncio.timeout(PATIENCE_S):
            while len(received) < 8:
                await asyncio.sleep(0)
                most, before = max(most, len(received) - before), len(received)
        receiver.close()
    assert received == [b"%d" % number for number in range(8)]
    assert most == 1
