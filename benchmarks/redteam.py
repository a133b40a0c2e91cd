"""A red team: one of two tenants attacks the gateway in every way it knows, the other goes on working.

    python benchmarks/redteam.py [--proxy nginx|envoy] [--rounds 4] [--seconds 4] [--only ATTACK ...] [--json]

The gateway runs as its users run it (`autellix serve` with keys and limits), in front of an engine that
answers at once or with a fault; with `--proxy`, behind one with the configuration of `deploy/proxy`. The
quiet tenant works in a process of its own, in each round alone first and then through each attack. The
attacker has a low priority: what is measured is the gateway, not the want of cores.

Attacks on the level of connections are the proxy's to stop, those on the level of requests the gateway's. The
exit code is 1 if a call of the quiet tenant fails, if any answer is a 500 or an error in no client's format,
if the gateway's memory grows beyond its bound, if a secret shows anywhere, if a call is open at the end, or
if the quiet tenant's p99 grows too much: behind a proxy to more than twice that alone in more than 4 attacks,
without one to more than three times that alone in an attack on the level of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import redteam_engine
import redteam_quiet
from redteam_attacks import ATTACKS, CONNECTION_LEVEL, Target
from redteam_proxy import PROXIES, running_proxy
from redteam_quiet import Phase, quantile

from autellix_backend.gateway.tenancy.tenants import key_line

MIB = 2**20
KEYS = {name: f"sk-autellix-{name}" for name in ("hostile", "quiet", "operator")}
PASSWORD = "hush-hush-hush"
ENGINE_KEY = "engine-key-of-the-red-team"
MAX_GROWTH_BYTES = 256 * MIB
"""Of the gateway's resident memory: twice what the settings below let bodies, answers and tables take."""
MAX_LOG_BYTES_S = 4 * 2**10
"""In a second: nobody may fill the disk with a line for each request or fault."""
MAX_RATIO_BEHIND_PROXY = 2.0
MAX_MISSES_BEHIND_PROXY = 4
MAX_RATIO_OF_REQUESTS = 3.0
ATTACKER_NICE = 15
ALONE = "alone"
START_S = 60.0
REST_S = 30.0
ACTIVE_CALLS = re.compile(r'^autellix_stored{kind="active_calls"} (\S+)$', re.MULTILINE)

CONFIG = """
[gateway]
port = 0
tenants_file = "{folder}/tenants.toml"
program_idle_s = 60.0
prefix_diagnosis = true
[engine]
urls = ["http://red:{password}@127.0.0.1:{port}"]
kind = "vllm"
extra_args = ["--api-key", "{engine_key}"]
"""
TENANTS = """
[[tenant]]
name = "hostile"
keys = ["{hostile}"]
[tenant.limits]
max_calls = 64
max_call_bytes = 8000000

max_output_tokens = 64
[[tenant]]
name = "quiet"
keys = ["{quiet}"]
[[tenant]]
name = "operator"
admin = true
keys = ["{operator}"]
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The quiet tenant during one attack."""

    attack: str
    level: str
    calls: int
    p50_ms: float
    p99_ms: float
    ratio: float
    """The p99 as a multiple of that alone."""
    longest_ms: float
    engine_p99_ms: float
    """The p99 of calls to the engine itself: the part of the machine."""
    failures: int
    hostile_requests: int
    memory_mib: float

    @property
    def text(self) -> str:
        """The row as one line."""
        return (
            f"{self.attack:18} {self.level:10} calls {self.calls:5}  p50 {self.p50_ms:6.1f}  "
            f"p99 {self.p99_ms:7.1f} ({self.ratio:4.1f}x)  longest {self.longest_ms:7.1f}  "
            f"engine p99 {self.engine_p99_ms:6.1f} ms  failures {self.failures}  "
            f"hostile {self.hostile_requests:6}  memory {self.memory_mib:4.0f} MiB"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The findings of a run."""

    proxy: str | None
    rows: list[Row]
    growth_mib: float
    answers: dict[str, int]
    complaints: list[str]


class Gateway:
    """`autellix serve` in a process of its own."""

    def __init__(self, folder: Path, engine_port: int) -> None:
        fields = {"folder": folder, "port": engine_port, "password": PASSWORD, "engine_key": ENGINE_KEY}
        (folder / "autellix.toml").write_text(CONFIG.format(**fields))
        (folder / "tenants.toml").write_text(
            TENANTS.format(**{name: key_line(key) for name, key in KEYS.items()})
        )
        self._log = folder / "gateway.log"
        command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", "--config", "autellix.toml"]
        with self._log.open("ab") as log:
            environment = {**os.environ, "AUTELLIX_CACHE_DIR": str(folder)}
            self._process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        self.started_s = time.monotonic()
        self.url = self._await_ready()

    def _await_ready(self) -> str:
        deadline = time.monotonic() + START_S
        while (found := re.search(r"Autellix is ready: .* at (\S+)/v1", self.log)) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the gateway did not start: {self.log}")
            time.sleep(0.05)
        return found[1]

    @property
    def log(self) -> str:
        """Return all output."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def memory_bytes(self, field: str = "VmRSS") -> int:
        """Return its resident memory, or with `VmHWM` the maximum so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

    def get(self, path: str) -> str:
        """Read an endpoint as the operator."""
        headers = {"authorization": f"Bearer {KEYS['operator']}"}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=REST_S) as response:
            text: str = response.read().decode()
        return text

    def active_calls(self) -> int:
        """Return the number of open calls."""
        found = ACTIVE_CALLS.search(self.get("/metrics"))
        return int(float(found[1])) if found else -1

    def end(self) -> int:
        """End it as an operator does; return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(REST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return -signal.SIGKILL


class Observer:
    """Collects what the quiet tenant and the gateway go through in each attack."""

    def __init__(self, gateway: Gateway, quiet: Connection, target: Target) -> None:
        self._gateway, self._quiet, self._target = gateway, quiet, target
        self.phases: dict[str, Phase] = {}
        self._requests: Counter[str] = Counter()
        self._memory_bytes: Counter[str] = Counter()

    async def during(self, name: str, action: Awaitable[None]) -> None:
        """Observe until an action ends."""
        await self._end_phase()
        before = self._target.answers.total()
        await action
        self._requests[name] += self._target.answers.total() - before
        self._memory_bytes[name] = max(self._memory_bytes[name], self._gateway.memory_bytes())
        self.phases.setdefault(name, Phase()).add(await self._end_phase())

    async def _end_phase(self) -> Phase:
        self._quiet.send("end")
        phase: Phase = await asyncio.to_thread(self._quiet.recv)
        return phase

    def row(self, name: str) -> Row:
        """Return the figures of an attack so far."""
        phase, alone = self.phases[name], self.phases[ALONE]
        p50_ms, p99_ms, longest_ms = (1000 * quantile(phase.calls_s, share) for share in (0.5, 0.99, 1.0))
        return Row(
            attack=name,
            level="connection" if name in CONNECTION_LEVEL else "request" if name in ATTACKS else "",
            calls=len(phase.calls_s),
            p50_ms=p50_ms,
            p99_ms=p99_ms,
            ratio=p99_ms / max(1000 * quantile(alone.calls_s, 0.99), 1e-3),
            longest_ms=longest_ms,
            engine_p99_ms=1000 * quantile(phase.direct_s, 0.99),
            failures=len(phase.failures),
            hostile_requests=self._requests[name],
            memory_mib=self._memory_bytes[name] / MIB,
        )


async def run(options: argparse.Namespace, folder: Path) -> Report:
    """Make the attacks, `options.rounds` times."""
    with _process(redteam_engine.serve) as engine:
        engine_port = engine.recv()
        gateway = Gateway(folder, engine_port)
        code = -1
        try:
            with running_proxy(options.proxy, gateway.url, folder) as url:
                arguments = (url, f"http://127.0.0.1:{engine_port}", KEYS["quiet"])
                with _process(redteam_quiet.play, *arguments) as quiet:
                    report = await _attack(gateway, url, quiet, options)
            complaints = [*report.complaints, *await _after(gateway)]
        finally:
            code = gateway.end()
        if code != 0:
            complaints.append(f"the gateway ended with {code}")
        return dataclasses.replace(report, complaints=complaints)


async def _attack(gateway: Gateway, url: str, quiet: Connection, options: argparse.Namespace) -> Report:
    # Only this process, the attacker.
    os.nice(ATTACKER_NICE)
    await asyncio.sleep(1.0)
    base_bytes = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as client:
        target = Target(url, KEYS["hostile"], client, random.Random(options.seed), options.proxy is not None)
        observer = Observer(gateway, quiet, target)
        for _ in range(options.rounds):
            await observer.during(ALONE, asyncio.sleep(max(3.0, options.seconds)))
            base_bytes = base_bytes or gateway.memory_bytes()
            for name in options.only:
                target.attack = name
                await observer.during(name, _repeat(name, target, options.seconds))
                print(observer.row(name).text, file=sys.stderr, flush=True)
    rows = [observer.row(name) for name in (ALONE, *options.only)]
    growth_bytes = gateway.memory_bytes("VmHWM") - base_bytes
    found = [*dict.fromkeys(target.surprises)]
    found += [
        f"the quiet tenant: {failure}" for each in observer.phases.values() for failure in each.failures
    ]
    found += [] if options.any_wait else too_slow(rows, behind_proxy=options.proxy is not None)
    if growth_bytes > MAX_GROWTH_BYTES:
        found.append(f"memory grew by {growth_bytes / MIB:.0f} MiB, {MAX_GROWTH_BYTES / MIB:.0f} are allowed")
    return Report(options.proxy, rows, growth_bytes / MIB, dict(sorted(target.answers.items())), found)


def too_slow(rows: list[Row], *, behind_proxy: bool) -> list[str]:
    """Return a complaint for each attack that delays the quiet tenant more than promised."""
    if behind_proxy:
        missed = [row for row in rows if row.ratio > MAX_RATIO_BEHIND_PROXY]
        missed = missed if len(missed) > MAX_MISSES_BEHIND_PROXY else []
    else:
        missed = [row for row in rows if row.level == "request" and row.ratio > MAX_RATIO_OF_REQUESTS]
    return [f"{row.attack}: p99 {row.p99_ms:.0f} ms, {row.ratio:.1f} times that alone" for row in missed]


async def _repeat(name: str, target: Target, least_s: float) -> None:
    """Make an attack, again until a time is over."""
    deadline = time.monotonic() + least_s
    while True:
        with contextlib.suppress(ConnectionError):
            await ATTACKS[name](target)
        if time.monotonic() >= deadline:
            return


async def _after(gateway: Gateway) -> list[str]:
    """Return what is left, or shows, after all clients have disconnected."""
    deadline = time.monotonic() + REST_S
    while (active := gateway.active_calls()) and time.monotonic() < deadline:  # noqa: ASYNC110 - it is asked
        await asyncio.sleep(0.2)
    found = [f"{active} calls are open"] if active else []
    pages = {path: gateway.get(path) for path in ("/autellix/v1/config", "/autellix/v1/engines", "/metrics")}
    secrets = (PASSWORD, ENGINE_KEY, *KEYS.values())
    for place, text in {**pages, "the log": gateway.log}.items():
        found += [f"{place} shows a secret" for secret in secrets if secret in text]
    age_s = time.monotonic() - gateway.started_s
    if len(gateway.log) > MAX_LOG_BYTES_S * age_s:
        found.append(f"the log has {len(gateway.log)} bytes after {age_s:.0f} s: {gateway.log[-400:]}")
    if "Traceback" in gateway.log:
        found.append("the log has a traceback: " + gateway.log[gateway.log.index("Traceback") :][-800:])
    return found


@contextmanager
def _process(target: Any, *arguments: object) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(REST_S)
        process.kill()


def main() -> int:
    """Run the red team from the command line; return the exit code."""
    names = list(ATTACKS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--proxy", choices=PROXIES, help="the proxy in front, default none")
    parser.add_argument("--rounds", type=int, default=4, help="how often all attacks are made")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long each attack is made at least")
    parser.add_argument("--any-wait", action="store_true", help="do not judge waits: the machine is busy")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="attacks, default all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(options, Path(folder)))
    if options.json:
        print(json.dumps(dataclasses.asdict(report)))
        return 1 if report.complaints else 0
    for row in report.rows:
        print(row.text)
    requests = sum(report.answers.values())
    print(f"memory grew by {report.growth_mib:.0f} MiB at most; {requests} hostile requests")
    for complaint in report.complaints:
        print(f"COMPLAINT {complaint}")
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
