"""A red team: one of two tenants attacks the gateway in every way it knows, the other goes on working.

    python benchmarks/redteam.py [--rounds 10] [--seconds 5] [--idle-attacker] [--seed 1] [--json]

The gateway runs as its users run it (`autellix serve` with keys and limits), in front of an engine that
answers at once or with a fault. The quiet tenant works in a process of its own, in each round alone first and
then through each attack. The exit code is 1 if one of its calls fails or waits too long, if any answer is a
500 or an error in no client's format, if the gateway's memory grows beyond its bound, if a secret shows
anywhere, or if a call is open at the end.
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
import urllib.error
import urllib.request
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import redteam_engine
import redteam_quiet
from redteam_attacks import ATTACKS, Target
from redteam_quiet import Phase, quantile

from autellix_backend.gateway.tenancy.tenants import key_line

MIB = 2**20
KEYS = {name: f"sk-autellix-{name}" for name in ("hostile", "quiet", "operator")}
PASSWORD = "hush-hush-hush"
ENGINE_KEY = "engine-key-of-the-red-team"
HOSTILE_ADDRESS, QUIET_ADDRESS = "127.0.0.1", "127.0.0.2"
MAX_GROWTH_BYTES = 256 * MIB
"""Of the gateway's resident memory under attack: twice what the settings below let bodies, answers and
tables take together."""
MAX_LOG_BYTES = 64 * 2**10
"""Nobody without a key may fill the disk with a line for each request."""
MAX_WAIT_RATIO = 2.0
"""The quiet tenant's p99 under attack stays below so many times its own alone, plus a slack: a busy machine
stops every process for a while."""
ALONE = "alone"
START_S = 60.0
REST_S = 30.0
ACTIVE_CALLS = re.compile(r'^autellix_stored{kind="active_calls"} (\S+)$', re.MULTILINE)

CONFIG = """
[gateway]
port = 0
tenants_file = "{folder}/tenants.toml"
max_body_bytes = 8388608
max_incoming_bytes = 33554432
max_answer_bytes = 4194304
program_idle_s = 60.0
[engine]
urls = ["http://red:{password}@127.0.0.1:{port}"]
kind = "vllm"
extra_args = ["--api-key", "{engine_key}"]
state_dir = "{folder}"
"""
TENANTS = """
[[tenant]]
name = "hostile"
keys = ["{hostile}"]
[tenant.limits]
max_calls = 64
max_call_bytes = 8000000
max_programs = 1000
max_sessions = 200
max_output_tokens = 64
[[tenant]]
name = "quiet"
keys = ["{quiet}"]
[[tenant]]
name = "operator"
admin = true
keys = ["{operator}"]
"""


@dataclasses.dataclass(slots=True)
class Attacked:
    """The quiet tenant and the gateway during one attack, in all rounds."""

    phase: Phase = dataclasses.field(default_factory=Phase)
    elapsed_s: float = 0.0
    gateway_cpu_s: float = 0.0
    gateway_delay_s: float = 0.0
    memory_bytes: int = 0
    requests: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """Waits of one kind."""

    count: int
    p50_ms: float
    p99_ms: float
    longest_ms: float

    @classmethod
    def of(cls, waits_s: Sequence[float]) -> Waits:
        """Sum waits up."""
        quantiles = [1000 * quantile(waits_s, share) for share in (0.5, 0.99, 1.0)]
        return cls(len(waits_s), *quantiles)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The quiet tenant during one attack."""

    attack: str
    calls: Waits
    """Of both kinds."""
    kept: Waits
    """On connections that were open already."""
    fresh: Waits
    """On a connection for each call."""
    direct: Waits
    """Of calls to the engine itself, which no gateway delays."""
    probes: Waits
    elapsed_s: float
    gateway_cpu_s: float
    gateway_delay_s: float
    """How long its event loop was ready to run, and the machine had no core for it."""
    requests: int
    """Hostile ones that were answered, or given up."""
    memory_mib: float

    @property
    def text(self) -> str:
        """Itself on one line."""
        return (
            f"{self.attack:18} calls {self.calls.count:5}  p50 {self.calls.p50_ms:7.1f}  "
            f"p99 {self.calls.p99_ms:7.1f}  longest {self.calls.longest_ms:7.1f}  "
            f"fresh p50 {self.fresh.p50_ms:7.1f} p99 {self.fresh.p99_ms:7.1f}  "
            f"direct p50 {self.direct.p50_ms:6.1f} p99 {self.direct.p99_ms:7.1f}  "
            f"probe p50 {self.probes.p50_ms:6.1f} p99 {self.probes.p99_ms:7.1f} ms  "
            f"gateway {self.gateway_cpu_s:6.2f} of {self.elapsed_s:6.2f} s, without a core "
            f"{self.gateway_delay_s:6.2f} s  "
            f"requests {self.requests:6}  memory {self.memory_mib:5.0f} MiB"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The findings of a run."""

    rows: list[Row]
    p50_ratio: float
    p99_ratio: float
    growth_mib: float
    answers: dict[str, int]
    complaints: list[str]


class Gateway:
    """`autellix serve` in a process of its own."""

    def __init__(self, folder: Path, engine_port: int, options: Sequence[str]) -> None:
        fields = {"folder": folder, "port": engine_port, "password": PASSWORD, "engine_key": ENGINE_KEY}
        (folder / "autellix.toml").write_text(CONFIG.format(**fields))
        (folder / "tenants.toml").write_text(
            TENANTS.format(**{name: key_line(key) for name, key in KEYS.items()})
        )
        self._log = folder / "gateway.log"
        command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", "--config", "autellix.toml"]
        command += options
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=os.environ)
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
        """All its output."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def memory_bytes(self, field: str = "VmRSS") -> int:
        """Return its resident memory, or with `VmHWM` the most it has had."""
        found = [re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE) for text in self._read("status")]
        return sum(int(each[1]) * 1024 for each in found if each)

    def cpu_s(self) -> float:
        """Return the processor time that it has taken."""
        fields = [text.rpartition(")")[2].split() for text in self._read("stat")]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")

    def delay_s(self) -> float:
        """Return how long its main thread has waited for a core."""
        return sum(int(text.split()[1]) for text in self._read("schedstat")) / 1e9

    def _read(self, name: str) -> list[str]:
        """Read a file of each of its processes."""
        own = Path(f"/proc/{self._process.pid}")
        children = (own / "task" / own.name / "children").read_text(encoding="ascii").split()
        return [(own.parent / pid / name).read_text(encoding="ascii") for pid in (own.name, *children)]

    def get(self, path: str) -> str:
        """Read an endpoint as the operator."""
        request = urllib.request.Request(
            self.url + path, headers={"authorization": f"Bearer {KEYS['operator']}"}
        )
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


class Quiet:
    """The quiet tenant's process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def end_phase(self) -> Phase:
        """Return what it saw since the last phase."""
        self._connection.send("end")
        phase: Phase = await asyncio.to_thread(self._connection.recv)
        return phase


async def run(options: argparse.Namespace, folder: Path) -> Report:
    """Make the attacks, `options.rounds` times."""
    with _process(redteam_engine.serve) as engine:
        store = ["--store", options.store] if options.store else []
        engine_port = engine.recv()
        gateway = Gateway(folder, engine_port, store)
        code = -1
        try:
            address = HOSTILE_ADDRESS if options.one_address else QUIET_ADDRESS
            urls = (gateway.url, f"http://127.0.0.1:{engine_port}")
            with _process(redteam_quiet.play, *urls, KEYS["quiet"], address) as connection:
                report = await _attack(gateway, Quiet(connection), options)
            complaints = [*report.complaints, *await _after(gateway)]
        finally:
            code = gateway.end()
        if code != 0:
            complaints.append(f"the gateway ended with {code}")
        return dataclasses.replace(report, complaints=complaints)


async def _attack(gateway: Gateway, quiet: Quiet, options: argparse.Namespace) -> Report:
    if options.idle_attacker:
        # From here on only this process, the attacker, is at the lowest priority.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    await asyncio.sleep(1.0)
    await quiet.end_phase()
    attacked = {name: Attacked() for name in (ALONE, *options.only)}
    base_bytes = 0
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client:
        target = Target(gateway.url, KEYS["hostile"], client, random.Random(options.seed))
        for _ in range(options.rounds):
            await _during(
                attacked[ALONE], asyncio.sleep(max(options.alone, options.seconds)), target, gateway, quiet
            )
            base_bytes = base_bytes or gateway.memory_bytes()
            for name in options.only:
                target.attack = name
                await _during(attacked[name], _repeat(name, target, options.seconds), target, gateway, quiet)
                print(_row(name, attacked[name]).text, file=sys.stderr, flush=True)
    growth_bytes = gateway.memory_bytes("VmHWM") - base_bytes
    rows = [_row(name, each) for name, each in attacked.items()]
    alone = rows[0].calls
    limit_ms = MAX_WAIT_RATIO * alone.p99_ms + 1000 * options.slack_s
    found = [*dict.fromkeys(target.surprises)]
    found += [f"the quiet tenant: {failure}" for each in attacked.values() for failure in each.phase.failures]
    found += [
        f"{row.attack}: p99 {row.calls.p99_ms:.0f} ms, {limit_ms:.0f} ms are allowed"
        for row in rows
        if row.calls.p99_ms > limit_ms
    ]
    if growth_bytes > MAX_GROWTH_BYTES:
        found.append(f"memory grew by {growth_bytes / MIB:.0f} MiB, {MAX_GROWTH_BYTES / MIB:.0f} are allowed")
    return Report(
        rows=rows,
        p50_ratio=max(row.calls.p50_ms for row in rows) / max(alone.p50_ms, 1e-3),
        p99_ratio=max(row.calls.p99_ms for row in rows) / max(alone.p99_ms, 1e-3),
        growth_mib=growth_bytes / MIB,
        answers=dict(sorted(target.answers.items())),
        complaints=found,
    )


async def _repeat(name: str, target: Target, least_s: float) -> None:
    """Make an attack, again until a time is over."""
    deadline = time.monotonic() + least_s
    while True:
        with contextlib.suppress(ConnectionError):
            await ATTACKS[name](target)
        if time.monotonic() >= deadline:
            return


async def _during(
    attacked: Attacked, action: Awaitable[None], target: Target, gateway: Gateway, quiet: Quiet
) -> None:
    """Note what the quiet tenant sees and the gateway spends until an action ends."""
    begun_s, begun_cpu_s, requests = time.monotonic(), gateway.cpu_s(), target.answers.total()
    begun_delay_s = gateway.delay_s()
    await action
    attacked.elapsed_s += time.monotonic() - begun_s
    attacked.gateway_cpu_s += gateway.cpu_s() - begun_cpu_s
    attacked.gateway_delay_s += gateway.delay_s() - begun_delay_s
    attacked.requests += target.answers.total() - requests
    attacked.memory_bytes = max(attacked.memory_bytes, gateway.memory_bytes())
    attacked.phase.add(await quiet.end_phase())


async def _after(gateway: Gateway) -> list[str]:
    """Return what is left, or shows, when all clients have gone."""
    deadline = time.monotonic() + REST_S
    while (active := gateway.active_calls()) and time.monotonic() < deadline:  # noqa: ASYNC110 - it is asked
        await asyncio.sleep(0.2)
    found = [f"{active} calls are open"] if active else []
    pages = {path: gateway.get(path) for path in ("/autellix/v1/config", "/autellix/v1/engines", "/metrics")}
    secrets = (PASSWORD, ENGINE_KEY, *KEYS.values())
    for place, text in {**pages, "the log": gateway.log}.items():
        found += [f"{place} shows a secret" for secret in secrets if secret in text]
    if len(gateway.log) > MAX_LOG_BYTES:
        found.append(
            f"the log has {len(gateway.log)} bytes, {MAX_LOG_BYTES} are allowed: {gateway.log[-400:]}"
        )
    if "Traceback" in gateway.log:
        found.append("the log has a traceback: " + gateway.log[gateway.log.index("Traceback") :][-800:])
    return found


def _row(name: str, attacked: Attacked) -> Row:
    phase = attacked.phase
    return Row(
        attack=name,
        calls=Waits.of([*phase.kept_s, *phase.fresh_s]),
        kept=Waits.of(phase.kept_s),
        fresh=Waits.of(phase.fresh_s),
        direct=Waits.of(phase.direct_s),
        probes=Waits.of(phase.probes_s),
        elapsed_s=attacked.elapsed_s,
        gateway_cpu_s=attacked.gateway_cpu_s,
        gateway_delay_s=attacked.gateway_delay_s,
        requests=attacked.requests,
        memory_mib=attacked.memory_bytes / MIB,
    )


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
    parser.add_argument("--rounds", type=int, default=10, help="how often all attacks are made")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long each attack is made at least")
    alone_help = "how long the quiet tenant works alone at least, in each round"
    parser.add_argument("--alone", type=float, default=3.0, help=alone_help)
    parser.add_argument(
        "--idle-attacker",
        action="store_true",
        help="attack at the lowest priority: what is measured is the gateway, not the want of cores",
    )
    parser.add_argument(
        "--one-address",
        action="store_true",
        help="the quiet tenant's connections come from the attacker's address, as behind one proxy",
    )
    parser.add_argument("--slack-s", type=float, default=0.0, help="added to the longest p99 that is allowed")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, help="attacks to make, default all"
    )
    parser.add_argument("--store", metavar="URL", help="of a Redis that others do not use")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(options, Path(folder)))
    if options.json:
        print(json.dumps(dataclasses.asdict(report)))
        return 1 if report.complaints else 0
    for row in report.rows:
        print(row.text)
    print(f"p50 {report.p50_ratio:.2f} and p99 {report.p99_ratio:.2f} times those alone at the worst attack")
    requests = sum(report.answers.values())
    print(f"memory grew by {report.growth_mib:.0f} MiB at most; {requests} hostile requests")
    for answer, count in report.answers.items():
        print(f"  {count:6} {answer}")
    for complaint in report.complaints:
        print(f"COMPLAINT {complaint}")
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
