"""What a report costs the engine's loop: over the local socket, over report links, and without a receiver.

    .venv/bin/python benchmarks/report_costs.py

The loop is imitated: each step computes for a while with Python's lock released, as a model does, and then
sends the reports of the calls that ended in it. Stated are the time of one send in the loop, the processor
time of the whole process per report, which includes the thread that owns the sockets, and what was lost.
Receivers are processes of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autellix_backend.engines.report_client import ReportClient
from autellix_backend.reports.link import EngineFacts
from autellix_backend.vllm_plugin.report_outlet import ReportOutlet
from autellix_lab.fakes.call import FakeBehaviour, FakeCall

SPAWN = multiprocessing.get_context("spawn")
SECRET = "the secret of this benchmark"
FACTS = EngineFacts(
    engine="e", version="0", vllm="0", policy="plas", has_admission=False, slots=256, kv_tokens=None
)


def receive_local(path: str, received: Any) -> None:
    """Read datagrams, and count them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 2**20)
        receiver.bind(path)
        while True:
            receiver.recv(65536)
            received.value += 1


def receive_linked(address: str, name: str, received: Any) -> None:
    """Connect as a gateway does, and count messages."""
    import asyncio

    async def run() -> None:
        def count(_: bytes) -> None:
            received.value += 1

        client = ReportClient(SECRET, name, on_message=count, on_change=lambda: None)
        client.open([address])
        await asyncio.Event().wait()

    asyncio.run(run())


def measure(
    outlet: ReportOutlet, gateways: Sequence[str], steps: int, per_step: int, step_s: float
) -> dict[str, float]:
    """Run steps, and send reports after each, to the gateways in turn."""
    call = FakeCall("call-0", {}, FakeBehaviour(), 8, 0)
    report = call.report(1).to_bytes()
    costs: list[float] = []
    cpu_s, start_s = time.process_time(), time.monotonic()
    for _ in range(steps):
        # The model's part, which holds no lock.
        time.sleep(step_s)
        for number in range(per_step):
            before = time.perf_counter()
            outlet.send(report, gateways[number % len(gateways)])
            costs.append(time.perf_counter() - before)
    costs.sort()
    return {
        "mean_us": 1e6 * statistics.fmean(costs),
        "p50_us": 1e6 * costs[len(costs) // 2],
        "p99_us": 1e6 * costs[int(0.99 * len(costs))],
        "max_us": 1e6 * costs[-1],
        "cpu_us_per_report": 1e6 * (time.process_time() - cpu_s) / len(costs),
        "lost": outlet.dropped_records,
        "wall_s": time.monotonic() - start_s,
    }


def main() -> None:
    """Print one line per way and load."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--gateways", type=int, nargs="*", default=[1, 4])
    args = parser.parse_args()
    print(f"{'way':<14}{'per step':>9}{'mean us':>9}{'p50':>7}{'p99':>7}{'max':>8}", end="")
    print(f"{'cpu/report':>12}{'lost':>6}{'got':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for per_step in (1, 16, 256):
            steps = max(40, args.steps // max(1, per_step // 16))
            local(Path(folder) / f"{per_step}.sock", steps, per_step, args.step_ms / 1000)
            for gateways in args.gateways:
                linked(gateways, steps, per_step, args.step_ms / 1000)


def local(path: Path, steps: int, per_step: int, step_s: float) -> None:
    """Measure the local socket."""
    received = SPAWN.Value("l", 0, lock=False)
    process = SPAWN.Process(target=receive_local, args=(str(path), received), daemon=True)
    process.start()
    while not path.exists():
        time.sleep(0.01)
    outlet = ReportOutlet(str(path))
    figures = measure(outlet, [""], steps, per_step, step_s)
    show("local", per_step, figures, [received])
    process.kill()


def linked(gateways: int, steps: int, per_step: int, step_s: float) -> None:
    """Measure report links."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    outlet = ReportOutlet(None)
    # One for each, as none is locked.
    received = [SPAWN.Value("l", 0, lock=False) for _ in range(gateways)]
    processes = [
        SPAWN.Process(target=receive_linked, args=(address, f"g{number}", count), daemon=True)
        for number, count in enumerate(received)
    ]
    for process in processes:
        process.start()
    outlet.listen(address, SECRET, lambda: FACTS)
    assert outlet.server is not None
    while not all(outlet.server.is_connected(f"g{number}") for number in range(gateways)):
        time.sleep(0.01)
    names = [f"g{number}" for number in range(gateways)]
    figures = measure(outlet, names, steps, per_step, step_s)
    show(f"{gateways} linked", per_step, figures, received)
    for process in processes:
        process.kill()
    outlet.close()


def show(way: str, per_step: int, figures: dict[str, float], received: list[Any]) -> None:
    """Print a line, once what was sent has had time to arrive."""
    time.sleep(0.5)
    print(
        f"{way:<14}{per_step:>9}{figures['mean_us']:>9.1f}{figures['p50_us']:>7.1f}{figures['p99_us']:>7.1f}"
        f"{figures['max_us']:>8.0f}{figures['cpu_us_per_report']:>12.1f}{figures['lost']:>6.0f}"
        f"{sum(count.value for count in received):>8}",
        flush=True,
    )


if __name__ == "__main__":
    main()
