"""A fake engine in its own process with few slots: further calls wait there in the order of arrival.

It sends snapshots of its queue as our scheduler in vLLM does, and shows its numbers under vLLM's names.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from autellix_backend.engines.factory import REPORT_PORT_OFFSET
from autellix_backend.reports.snapshot import CallSnapshot, EngineSnapshot, PresentPrograms
from autellix_backend.vllm_plugin.snapshots import CALLS_PERIOD_S, MAX_FEW_CALLS, PERIOD_S

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fakes.answers import FakeDialect
from tests.fakes.call import FakeCall, Fault
from tests.fakes.engine import FakeBehaviour, FakeEngine

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


@dataclass(slots=True, eq=False)
class Entry:
    """A call that waits or runs."""

    call_id: str
    program_id: str
    since_s: float
    is_running: bool = False


class QueueingEngine(FakeEngine):
    """A fake engine that runs few calls at once."""

    def __init__(self, slots: int, port: int, behaviour: FakeBehaviour) -> None:
        """Prepare a server that reports where gateways look for it."""
        super().__init__(
            behaviour,
            port=port,
            keeps_requests=False,
            report_address=f"tcp://127.0.0.1:{port + REPORT_PORT_OFFSET}",
            report_secret=os.environ["AUTELLIX_ENGINE_REPORT_SECRET"],
        )
        self._slots = slots
        self._free = asyncio.Semaphore(slots)
        self._entries: list[Entry] = []
        self._next_calls_s = 0.0

    async def send_snapshots(self) -> None:
        """Send a snapshot in each period while there are calls, and one without any."""
        had_calls = True
        while True:
            if self._entries or had_calls:
                assert self.report_server is not None
                self.report_server.broadcast(self._snapshot())
            had_calls = bool(self._entries)
            await asyncio.sleep(PERIOD_S)

    async def _answer(
        self, request: web.Request, call: FakeCall, dialect: FakeDialect, fault: Fault
    ) -> web.StreamResponse:
        with self._queued(call) as entry:
            async with self._free:
                entry.since_s, entry.is_running = time.monotonic(), True
                return await super()._answer(request, call, dialect, fault)

    @contextmanager
    def _queued(self, call: FakeCall) -> Iterator[Entry]:
        report = call.report(self.steps)
        entry = Entry(report.call_id, report.program_id, time.monotonic())
        self._entries.append(entry)
        try:
            yield entry
        finally:
            self._entries.remove(entry)

    async def _echo(self, request: web.Request) -> web.Response:
        if request.path != "/metrics":
            return await super()._echo(request)
        running = self._running()
        numbers = {RUNNING: running, WAITING: len(self._entries) - running}
        return web.Response(text="".join(f"{name} {number}\n" for name, number in numbers.items()))

    def _running(self) -> int:
        return sum(entry.is_running for entry in self._entries)

    def _snapshot(self) -> EngineSnapshot:
        now, running = time.monotonic(), self._running()
        has_calls = now >= self._next_calls_s or len(self._entries) <= MAX_FEW_CALLS
        if has_calls:
            self._next_calls_s = now + CALLS_PERIOD_S
        programs = tuple({entry.program_id for entry in self._entries})
        return EngineSnapshot(
            step=self.steps,
            mean_step_s=None,
            running=running,
            waiting=len(self._entries) - running,
            slots=self._slots,
            kv_used_blocks=0,
            kv_total_blocks=1000,
            kv_block_tokens=16,
            is_block_short=False,
            level_calls=(len(self._entries),),
            calls=self._calls(now) if has_calls else (),
            left_out=0 if has_calls else len(self._entries),
            present=None if has_calls else PresentPrograms((), programs),
        )

    def _calls(self, now: float) -> tuple[CallSnapshot, ...]:
        return tuple(
            CallSnapshot(
                call_id=entry.call_id,
                program_id=entry.program_id,
                thread_id="0",
                place=place,
                level=1,
                is_running=entry.is_running,
                since_s=now - entry.since_s,
                wait_s=0.0 if entry.is_running else now - entry.since_s,
                service_s=0.0,
                inherited_service_s=0.0,
                program_service_s=0.0,
                program_wait_s=0.0,
                ratio=None,
                promotion_s=None,
                quantum_s=None,
                kv_blocks=0,
                preemptions=0,
                promotions=0,
            )
            for place, entry in enumerate(self._entries, start=1)
        )


async def serve(port: int, slots: int, token_delay_s: float) -> None:
    """Answer calls until SIGTERM."""
    engine = QueueingEngine(slots, port, FakeBehaviour(output_tokens=10**6, token_delay_s=token_delay_s))
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    await engine.start()
    snapshots = asyncio.create_task(engine.send_snapshots())
    await end.wait()
    snapshots.cancel()
    await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--token-delay-s", type=float, required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.slots, options.token_delay_s))


if __name__ == "__main__":
    main()
