"""What a report costs the engine's loop: on one machine and over the network.

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
from typing import Any

from autellix_backend.engines.report_client import ReportClient
from autellix_backend.reports.link import EngineFacts
from autellix_backend.vllm_plugin.report_server import ReportServer
from autellix_lab.fakes.call import FakeBehaviour, FakeCall

SPAWN = multiprocessing.get_context("spawn")
SECRET = "the secret of this benchmark"
FACTS = EngineFacts(
    engine="e", version="0", vllm="0", policy="plas", has_admission=False, slots=256, kv_tokens=None
)


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
    server: ReportServer, gateways: Sequence[str], steps: int, per_step: int, step_s: float
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
            server.send(gateways[number % len(gateways)], report)
            costs.append(time.perf_counter() - before)
    costs.sort()
    return {
        "mean_us": 1e6 * statistics.fmean(costs),
        "p50_us": 1e6 * costs[len(costs) // 2],
        "p99_us": 1e6 * costs[int(0.99 * len(costs))],
        "max_us": 1e6 * costs[-1],
        "cpu_us_per_report": 1e6 * (time.process_time() - cpu_s) / len(costs),
        "lost": server.dropped_records,
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
            way = f"ipc://{folder}/{per_step}"
            linked(way, 1, steps, per_step, args.step_ms / 1000)
            for gateways in args.gateways:
                linked(free_address(), gateways, steps, per_step, args.step_ms / 1000)


def free_address() -> str:
    """Return an address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def linked(address: str, gateways: int, steps: int, per_step: int, step_s: float) -> None:
    """Measure an engine with so many gateways."""
    # One for each, as none is locked.
    received = [SPAWN.Value("l", 0, lock=False) for _ in range(gateways)]
    names = [f"g{number}" for number in range(gateways)]
    processes = [
        SPAWN.Process(target=receive_linked, args=(address, name, count), daemon=True)
        for name, count in zip(names, received, strict=True)
    ]
    for process in processes:
        process.start()
    server = ReportServer(address, SECRET, lambda: FACTS)
    while not all(map(server.is_connected, names)):
        time.sleep(0.01)
    figures = measure(server, names, steps, per_step, step_s)
    show(f"{gateways} {address.partition(':')[0]}", per_step, figures, received)
    for process in processes:
        process.kill()
    server.close()


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
