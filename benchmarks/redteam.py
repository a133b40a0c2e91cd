"""A red team: one of two tenants attacks the gateway in every way it knows, the other goes on working.

    python benchmarks/redteam.py [--rounds 10] [--seed 1] [--json]

The gateway runs as its users run it (`autellix serve` with keys and limits), in front of an engine that
answers at once or with a fault. The quiet tenant works in a process of its own, alone first and then through
each attack. The exit code is 1 if one of its calls fails or waits too long, if any answer is a 500 or an
error in no client's format, if the gateway's memory grows beyond its bound, if a secret shows anywhere, or
if a call is open at the end.
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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import redteam_engine
import redteam_quiet
from redteam_attacks import ATTACKS, Target
from redteam_quiet import Phase

from autellix_backend.gateway.tenancy.tenants import key_line

MIB = 2**20
Attack = tuple[str, Callable[[Target], Awaitable[None]]]
NAMED: Sequence[Attack] = tuple(ATTACKS.items())
KEYS = {name: f"sk-autellix-{name}" for name in ("hostile", "quiet", "operator")}
PASSWORD = "hush-hush-hush"
ENGINE_KEY = "engine-key-of-the-red-team"
MAX_GROWTH_BYTES = 256 * MIB
"""Of the gateway's resident memory under attack: twice what the settings below let bodies, answers and
tables take together."""
MAX_WAIT_RATIO = 20.0
SLACK_S = 1.0
"""The quiet tenant's p99 under attack stays below so many times its own alone, plus the slack: the attackers
share the machine's cores with it, and a busy machine stops every process for a while."""
ALONE_S = 3.0
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
heartbeat_s = 5.0
program_idle_s = 60.0
[engine]
urls = ["http://red:{password}@127.0.0.1:{port}"]
kind = "vllm"
extra_args = ["--api-key", "{engine_key}"]
state_dir = "{folder}"
report_port_offset = 0
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


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The quiet tenant during one attack."""

    attack: str
    calls: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    memory_mib: float


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

    def __init__(self, folder: Path, engine_port: int) -> None:
        fields = {"folder": folder, "port": engine_port, "password": PASSWORD, "engine_key": ENGINE_KEY}
        (folder / "autellix.toml").write_text(CONFIG.format(**fields))
        (folder / "tenants.toml").write_text(
            TENANTS.format(**{name: key_line(key) for name, key in KEYS.items()})
        )
        self._log = folder / "gateway.log"
        command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", "--config", "autellix.toml"]
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
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

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


async def run(attacks: Sequence[Attack], rounds: int, seed: int, folder: Path) -> Report:
    """Make the attacks, `rounds` times."""
    with _process(redteam_engine.serve) as engine:
        gateway = Gateway(folder, engine.recv())
        code = -1
        try:
            with _process(redteam_quiet.play, gateway.url, KEYS["quiet"]) as connection:
                report = await _attack(gateway, Quiet(connection), [*attacks] * rounds, seed)
            complaints = [*report.complaints, *await _after(gateway)]
        finally:
            code = gateway.end()
        if code != 0:
            complaints.append(f"the gateway ended with {code}")
        return dataclasses.replace(report, complaints=complaints)


async def _attack(gateway: Gateway, quiet: Quiet, attacks: Sequence[Attack], seed: int) -> Report:
    await asyncio.sleep(1.0)
    await quiet.end_phase()
    await asyncio.sleep(ALONE_S)
    alone = await quiet.end_phase()
    base_bytes = gateway.memory_bytes()
    rows = [_row("alone", alone, gateway)]
    phases: list[Phase] = []
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client:
        target = Target(gateway.url, KEYS["hostile"], client, random.Random(seed))
        for name, attack in attacks:
            target.attack = name
            with contextlib.suppress(ConnectionError):
                await attack(target)
            phases.append(await quiet.end_phase())
            rows.append(_row(name, phases[-1], gateway))
            print(rows[-1], file=sys.stderr, flush=True)
    growth_bytes = gateway.memory_bytes("VmHWM") - base_bytes
    found = [*dict.fromkeys(target.surprises)]
    found += [f"the quiet tenant: {failure}" for phase in (alone, *phases) for failure in phase.failures]
    limit_s = MAX_WAIT_RATIO * alone.quantile(0.99) + SLACK_S
    for row in rows:
        if row.p99_ms > 1000 * limit_s:
            found.append(f"{row.attack}: p99 {row.p99_ms:.0f} ms, {1000 * limit_s:.0f} ms are allowed")
    if growth_bytes > MAX_GROWTH_BYTES:
        found.append(f"memory grew by {growth_bytes / MIB:.0f} MiB, {MAX_GROWTH_BYTES / MIB:.0f} are allowed")
    return Report(
        rows=rows,
        p50_ratio=redteam_quiet.ratio(phases, alone, 0.5),
        p99_ratio=redteam_quiet.ratio(phases, alone, 0.99),
        growth_mib=growth_bytes / MIB,
        answers=dict(sorted(target.answers.items())),
        complaints=found,
    )


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
    if "Traceback" in gateway.log:
        found.append("the log has a traceback: " + gateway.log[gateway.log.index("Traceback") :][-800:])
    return found


def _row(attack: str, phase: Phase, gateway: Gateway) -> Row:
    return Row(
        attack=attack,
        calls=len(phase.waits_s),
        p50_ms=1000 * phase.quantile(0.5),
        p99_ms=1000 * phase.quantile(0.99),
        longest_ms=1000 * max(phase.waits_s, default=0.0),
        memory_mib=gateway.memory_bytes() / MIB,
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
    names = [name for name, _ in NAMED]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="how often all attacks are made")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, help="attacks to make, default all"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    attacks = [(name, attack) for name, attack in NAMED if name in options.only]
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(attacks, options.rounds, options.seed, Path(folder)))
    if options.json:
        print(json.dumps(dataclasses.asdict(report)))
        return 1 if report.complaints else 0
    for row in report.rows:
        print(
            f"{row.attack:16} calls {row.calls:5}  p50 {row.p50_ms:7.1f}  p99 {row.p99_ms:7.1f}  "
            f"longest {row.longest_ms:7.1f} ms  memory {row.memory_mib:5.0f} MiB"
        )
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
