"""Measure the client's costs: import, call, task, thread, job.

    python benchmarks/sdk_overhead.py

Costs are differences of the same work with the client on and off, in one process: the median over many short
rounds of the difference within a round, for a host's speed changes between rounds, and the difference of the
fastest rounds. The transport is inside the process, so a call costs what the OpenAI client and we cost, and
no network. Imports are those of an installed package, whose bytecode is there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai

import autellix
from autellix._faults import safely
from autellix._instrument import calls
from autellix._instrument.openai import in_flight
from autellix._programs.running import running_thread

BASE_URL = "http://127.0.0.1:9/v1"
ANSWER = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
MESSAGES: Any = [{"role": "user", "content": "hello"}]
IMPORT = (
    "import atexit, contextlib, functools, queue, threading, time, weakref, collections\n"
    "started_s = time.perf_counter(); import autellix; print(time.perf_counter() - started_s)"
)
BARE_IMPORT = (
    "import time; started_s = time.perf_counter(); import autellix; print(time.perf_counter() - started_s)"
)


def compare(work: Callable[[], float], rounds: int) -> dict[str, float]:
    """Return the microseconds of a piece of work without and with the client, and what the client adds."""
    switches = (autellix.uninstrument, autellix.instrument)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        # Each goes first in half of the rounds: the second finds the caches warm.
        for which in (number % 2, 1 - number % 2):
            switches[which]()
            times[which].append(work())
    off, on = times
    autellix.instrument()
    without_s, with_s = statistics.median(off), statistics.median(on)
    return {
        "without_us": without_s * 1e6,
        "with_us": with_s * 1e6,
        "added_us": statistics.median(b - a for a, b in zip(off, on, strict=True)) * 1e6,
        "added_fastest_us": (min(on) - min(off)) * 1e6,
    }


def time_calls(count: int) -> Callable[[], float]:
    """Make calls of one program through a transport that answers at once."""
    base: Any = openai._base_client
    http: Any = base.__dict__.get("httpx2") or httpx
    transport = http.MockTransport(lambda _request: http.Response(200, json=ANSWER))
    client = openai.OpenAI(
        base_url=BASE_URL, api_key="key", http_client=http.Client(transport=transport), max_retries=0
    )

    def work() -> float:
        with autellix.program("bench"):
            times = []
            for _ in range(count):
                started_s = time.perf_counter()
                client.chat.completions.create(model="m", messages=MESSAGES)
                times.append(time.perf_counter() - started_s)
        return statistics.median(times)

    return work


def time_own_part(count: int) -> dict[str, dict[str, float]]:
    """Return the client's own microseconds per call, without the OpenAI client's spread.

    With and without a generator's scope open, in turn: then each look-up walks the stack.
    """
    times: dict[str, list[float]] = {"our part of a call": [], "our part, with a generator's scope": []}
    plain, within = times.values()
    for _ in range(10):
        plain += _own_times(count // 10)
        generator = _scope_in_a_generator()
        next(generator)
        within += _own_times(count // 10)
        generator.close()
    return {
        name: {"median_us": statistics.median(found) * 1e6, "fastest_us": min(found) * 1e6}
        for name, found in times.items()
    }


def _scope_in_a_generator() -> Generator[None]:
    with autellix.program("suspended"):
        yield


def _own_times(count: int) -> list[float]:
    base: Any = openai._base_client
    options_of: Any = openai._models.FinalRequestOptions
    client = openai.OpenAI(base_url=BASE_URL, api_key="key", max_retries=0)
    http: Any = base.__dict__.get("httpx2") or httpx
    build: Any = base.BaseClient._build_request.__wrapped__
    times = []
    with autellix.program("bench"):
        for _ in range(count):
            options = options_of.construct(method="post", url="/chat/completions", json_data={})
            request = build(client, options, retries_taken=0)
            response = http.Response(200, json=ANSWER, headers={"X-Autellix-Version": "1"}, request=request)
            started_s = time.perf_counter()
            begun = safely(in_flight.begin, client, (None, options), {})
            safely(in_flight.annotate, client, options, request)
            safely(calls.observe, response)
            in_flight.finish(begun)
            times.append(time.perf_counter() - started_s)
    client.close()
    return times


def time_dead_calls(count: int) -> Callable[[], float]:
    """Make calls to a closed port."""
    client = openai.OpenAI(base_url=BASE_URL, api_key="key", max_retries=0)

    def work() -> float:
        started_s = time.perf_counter()
        for _ in range(count):
            try:
                client.chat.completions.create(model="m", messages=MESSAGES)
            except openai.APIConnectionError:
                continue
        return (time.perf_counter() - started_s) / count

    return work


async def _nothing() -> None:
    pass


def time_tasks(count: int) -> Callable[[], float]:
    """Create tasks that end at once, in a program with a finished call."""

    async def main() -> float:
        with autellix.program("bench"):
            running_thread().record_call("call")
            times = []
            for _ in range(20):
                started_s = time.perf_counter()
                tasks = [asyncio.create_task(_nothing()) for _ in range(count)]
                times.append((time.perf_counter() - started_s) / count)
                await asyncio.gather(*tasks)
        return statistics.median(times)

    return lambda: asyncio.run(main())


def time_threads(count: int) -> Callable[[], float]:
    """Start and join threads."""

    def work() -> float:
        with autellix.program("bench"):
            started_s = time.perf_counter()
            for _ in range(count):
                thread = threading.Thread(target=int)
                thread.start()
                thread.join()
            return (time.perf_counter() - started_s) / count

    return work


def time_jobs(count: int) -> Callable[[], float]:
    """Submit jobs to a pool and wait for all."""
    pool = ThreadPoolExecutor(2)

    def work() -> float:
        with autellix.program("bench"):
            started_s = time.perf_counter()
            futures = [pool.submit(int) for _ in range(count)]
            for future in futures:
                future.result()
            return (time.perf_counter() - started_s) / count

    return work


def time_import(script: str, runs: int) -> dict[str, float]:
    """Return the milliseconds of the import in fresh processes."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        # Where no bytecode is written, every import would pay for a compilation.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", script]
        times_s = [
            float(subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout)
            for _ in range(runs + 1)
        ][1:]
    return {"median_ms": statistics.median(times_s) * 1e3, "fastest_ms": min(times_s) * 1e3}


def main() -> int:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    autellix.configure(BASE_URL)
    for name, script in {"beside loaded modules": IMPORT, "bare": BARE_IMPORT}.items():
        times = time_import(script, 15)
        print(f"import, {name}: {times['median_ms']:.1f} ms, fastest {times['fastest_ms']:.1f} ms")
    for name, times in time_own_part(3000).items():
        print(f"{name}: {times['median_us']:.1f} us, fastest {times['fastest_us']:.1f} us")
    for name, work in {
        "call": time_calls(30),
        "task": time_tasks(200),
        "thread": time_threads(40),
        "job": time_jobs(100),
        "call to a dead backend": time_dead_calls(6),
    }.items():
        costs = compare(work, args.rounds)
        added = f"+{costs['added_us']:.1f} us, fastest +{costs['added_fastest_us']:.1f} us"
        print(f"{name}: {costs['without_us']:.1f} -> {costs['with_us']:.1f} us, {added}")
    autellix.uninstrument()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
