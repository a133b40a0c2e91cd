"""A soak: thousands of programs at once through the gateway, with injected faults.

    python benchmarks/soak.py [--programs 2048] [--calls 50000] [--json]

The engine is a fake one, because faults must come on demand: errors, resets before and after the first byte,
calls that it never answers, slow ones, and answers without a report. Clients disconnect at random moments,
end their programs twice or never, and lose their sessions. Afterwards every accepted call must have been
settled exactly once, and nothing may be left: no program, session, call, task, socket or label series. The
exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import multiprocessing
import random
import resource
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from proxies import RunningEngine

from autellix_backend.assembly import create_app
from autellix_backend.cli.server import BACKLOG, GatewayServer, connection_limit
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.sessions.running_sessions import SESSION_TTL_S
from autellix_backend.settings import GatewaySettings, Settings
from autellix_backend.stores.base import CallEnd, CallStart, Inherited
from autellix_backend.stores.memory import MemoryStore

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fakes.engine import FakeBehaviour, FakeEngine, Fault

FAULTS = {
    Fault.ERROR: 0.02,
    Fault.RESET_BEFORE_FIRST_BYTE: 0.02,
    Fault.RESET_MID_STREAM: 0.02,
    Fault.HANG: 0.002,
    Fault.SLOW: 0.05,
    Fault.UNREPORTED: 0.01,
}
ACCOUNT_WAIT_S = 0.2
SAMPLE_S = 5.0
SPARE_S = 15.0
"""How long after the idle time, counted from the last call's end, an abandoned program may be seen."""
WARM_SHARE = 0.3
"""The share of the calls after which memory should no longer grow."""
MIN_WINDOW_CALLS = 10_000
"""With fewer calls a process still grows to its usual size, and the slope means nothing."""
MAX_LATE_SERIES = 8
"""Label series of outcomes that the first third of the calls did not have; a leak has one per program."""
MAX_GROWTH_BYTES = 1024
"""Bytes per settled call that memory may grow by after that; a leaked call is several kilobytes."""


# The gateway, and a store that counts settlements.

PAGE_BYTES = resource.getpagesize()


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of the gateway's process."""

    begun: int
    """Calls that entered the store."""
    settled: int
    settled_twice: int
    programs: int
    sessions: int
    active_calls: int
    tasks: int
    """Tasks of the event loop."""
    sockets: int
    """Open file descriptors that are sockets."""
    memory_bytes: int
    """Resident memory."""
    series: int = 0
    """Label series of all metrics, as they are scraped."""


class LedgerStore(MemoryStore):
    """A MemoryStore that counts every call's beginning and end."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            make_policy(settings.scheduler.policy),
            program_idle_s=settings.gateway.program_idle_s,
            session_ttl_s=SESSION_TTL_S,
        )
        self.begun = 0
        self.ended: Counter[str] = Counter()
        self._open: set[str] = set()

    async def begin(self, call: CallStart, now: float) -> Inherited:
        """Count a beginning."""
        inherited = await super().begin(call, now)
        self.begun += 1
        self._open.add(call.key)
        return inherited

    async def settle(self, end: CallEnd, now: float) -> None:
        """Count an end; a second one of the same call is counted apart."""
        self.ended["once" if end.key in self._open else "again"] += 1
        self._open.discard(end.key)
        await super().settle(end, now)


def _serve_gateway(engine: RunningEngine, settings: Settings, requests: Connection) -> None:
    """Run the gateway in this process; report its port, then Stats for everything that arrives."""
    store = LedgerStore(settings)
    app = create_app(settings, engine, store=store)
    is_ready = asyncio.Event()
    server = GatewayServer(app, settings.gateway, connection_limit(), is_ready.set)

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await is_ready.wait()
            requests.send(listener.getsockname()[1])
            while True:
                try:
                    await asyncio.to_thread(requests.recv)
                except EOFError:
                    break
                requests.send(await _stats(store))
            server.should_exit = True
            app.state.gateway.closing.set()
            await serving

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def _stats(store: LedgerStore) -> Stats:
    gc.collect()
    counts = await store.counts()
    store.check()
    return Stats(
        begun=store.begun,
        settled=store.ended["once"],
        settled_twice=store.ended["again"],
        programs=counts.programs,
        sessions=counts.sessions,
        active_calls=counts.active_calls,
        tasks=len(asyncio.all_tasks()),
        sockets=_sockets(),
        memory_bytes=_memory_bytes(),
    )


def _sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except OSError:
            # The folder's own descriptor is gone by now.
            continue
    return count


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


# The clients.

CHAT = "/v1/chat/completions"
SESSIONS = "/autellix/v1/sessions"
PROGRAMS = "/autellix/v1/programs"
IMPATIENT_SHARE = 0.05
IMPATIENT_S = 0.3
"""The longest wait of an impatient client before it disconnects."""
BRANCH_SHARE = 0.2
MAX_TOKENS = 12
ENDINGS = {"final": 0.25, "delete": 0.25, "delete twice": 0.1, "session": 0.2, "abandoned": 0.2}
"""Shares of the ways in which programs end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What the clients do."""

    programs: int
    """All at once."""
    calls: int
    """Of all programs together."""
    think_s: float
    """The mean pause between a program's steps."""
    patience_s: float
    """The timeout of every call: the engine never answers some."""


@dataclasses.dataclass(slots=True)
class Ledger:
    """The clients' results."""

    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    """Calls by outcome: a status, `left` (the client disconnected), `broken` (in mid-answer)."""
    endings: Counter[str] = dataclasses.field(default_factory=Counter)
    surprises: Counter[str] = dataclasses.field(default_factory=Counter)
    """Errors that no injected fault explains."""
    alive: int = 0
    most_alive: int = 0


class SoakProgram:
    """One program of the soak."""

    def __init__(
        self, client: aiohttp.ClientSession, url: str, number: int, calls: int, load: Load, ledger: Ledger
    ) -> None:
        self._client = client
        self._url = url
        self._random = random.Random(number)
        self._name = f"soak-{number}"
        self._calls = calls
        self._load = load
        self._ledger = ledger
        self._ending = self._random.choices(tuple(ENDINGS), tuple(ENDINGS.values()))[0]

    async def run(self) -> None:
        """Call until the calls are made, then end."""
        self._ledger.alive += 1
        self._ledger.most_alive = max(self._ledger.alive, self._ledger.most_alive)
        if self._ending == "session":
            await self._control("POST", SESSIONS, {"session_id": self._name}, (200, 201))
        made = 0
        while made < self._calls:
            await asyncio.sleep(self._random.expovariate(1 / self._load.think_s))
            if self._ending == "session":
                # A pause may outlast the session; then it is lost, and the program with it.
                await self._control("POST", f"{SESSIONS}/{self._name}/heartbeat", None, (200, 404))
            width = 3 if self._random.random() < BRANCH_SHARE else 1
            width = min(width, self._calls - made)
            is_last = made + width >= self._calls
            await asyncio.gather(*(self._call(thread, is_last=is_last) for thread in range(width)))
            made += width
        await self._end()
        self._ledger.alive -= 1

    async def _call(self, thread: int, *, is_last: bool) -> None:
        is_stream = self._random.random() < 0.5
        is_impatient = self._random.random() < IMPATIENT_SHARE
        patience_s = self._random.uniform(0, IMPATIENT_S) if is_impatient else self._load.patience_s
        body = {
            "model": "fake",
            "messages": [{"role": "user", "content": "how long is the queue today"}],
            "max_tokens": self._random.randint(1, MAX_TOKENS),
            "stream": is_stream,
        }
        headers = {"X-Autellix-Program-ID": self._name, "X-Autellix-Thread-ID": str(thread)}
        if self._ending == "session":
            headers["X-Autellix-Session-ID"] = self._name
        if is_last and self._ending == "final" and thread == 0:
            headers["X-Autellix-Final"] = "true"
        self._ledger.outcomes[await self._outcome(body, headers, patience_s)] += 1

    async def _outcome(self, body: dict[str, Any], headers: dict[str, str], patience_s: float) -> str:
        try:
            async with asyncio.timeout(patience_s):
                async with self._client.post(self._url + CHAT, json=body, headers=headers) as response:
                    content = await response.read()
        except TimeoutError:
            return "left"
        except aiohttp.ClientError as error:
            self._ledger.surprises[type(error).__name__] += 1
            return "refused"
        if response.status != 200:
            if b'"error"' not in content:
                self._ledger.surprises[f"{response.status} without an error object"] += 1
            return str(response.status)
        is_whole = b"[DONE]" in content if body["stream"] else b'"choices"' in content
        if not is_whole and b'"error"' not in content:
            self._ledger.surprises["neither an end nor an error"] += 1
        return "200" if is_whole else "broken"

    async def _end(self) -> None:
        self._ledger.endings[self._ending] += 1
        if self._ending == "session":
            await self._control("DELETE", f"{SESSIONS}/{self._name}", None, (204, 404))
        elif self._ending.startswith("delete"):
            await self._control("DELETE", f"{PROGRAMS}/{self._name}", None, (204, 404))
            if self._ending == "delete twice":
                await self._control("DELETE", f"{PROGRAMS}/{self._name}", None, (204, 404))

    async def _control(self, method: str, path: str, body: Any, expected: tuple[int, ...]) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._client.request(method, self._url + path, json=body) as response:
                if response.status not in expected:
                    self._ledger.surprises[f"{method} {path.rsplit('/', 1)[0]}: {response.status}"] += 1


# The soak.


def growth(samples: Sequence[tuple[int, int]]) -> float:
    """Return the slope of memory over settled calls, in bytes per call, by least squares."""
    count = len(samples)
    if count < 2:
        return 0.0
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


def complaints(before: Stats, warm: Stats, after: Stats, ledger: Ledger, growth_bytes: float) -> list[str]:
    """Return the violations: `before` is the fresh gateway, `warm` one that has served every kind of call."""
    found = [f"{count} times: {what}" for what, count in ledger.surprises.items()]
    if after.settled != after.begun:
        found.append(f"{after.begun} calls began and {after.settled} were settled")
    if after.settled_twice:
        found.append(f"{after.settled_twice} calls were settled twice")
    made = sum(ledger.outcomes.values())
    answered = made - ledger.outcomes["left"] - ledger.outcomes["refused"]
    if not answered <= after.begun <= made:
        found.append(f"the clients made {made} calls, {answered} were answered, and {after.begun} began")
    kept = {name: getattr(after, name) for name in ("programs", "sessions", "active_calls")}
    found += [f"{count} {name} are left" for name, count in kept.items() if count]
    late = warm.series + MAX_LATE_SERIES
    for name, allowed in (("tasks", before.tasks), ("sockets", before.sockets), ("series", late)):
        if (held := getattr(after, name)) > allowed:
            found.append(f"{held} {name} are held, {allowed} are expected")
    if growth_bytes > MAX_GROWTH_BYTES:
        found.append(f"memory grew by {growth_bytes:.0f} bytes per call, {MAX_GROWTH_BYTES} are allowed")
    return found


async def soak(load: Load, idle_s: float, folder: Path) -> dict[str, Any]:
    """Run the soak in a gateway and an engine of their own processes; return its findings."""
    settings = Settings(
        gateway=GatewaySettings(program_idle_s=idle_s, report_wait_s=ACCOUNT_WAIT_S),
        scheduler=SchedulerConfig(policy="atlas"),
    )
    ledger = Ledger()
    started_s = time.monotonic()
    with _process(_serve_engine, folder / "accounts.sock") as engine_end:
        engine = RunningEngine("fake", await _receive(engine_end), (f"ipc://{folder / 'accounts.sock'}",))
        with _process(_serve_gateway, engine, settings) as gateway_end:
            url = f"http://127.0.0.1:{await _receive(gateway_end)}"
            before = await _ask(gateway_end, url)
            samples = await _play(url, load, ledger, gateway_end)
            after = await _rest(gateway_end, url, before, idle_s)
    warm = next((stats for stats in samples if stats.settled >= WARM_SHARE * load.calls), samples[-1])
    slope = growth([(s.settled, s.memory_bytes) for s in samples if s.settled >= warm.settled])
    is_long = after.settled - warm.settled >= MIN_WINDOW_CALLS
    return {
        "programs": load.programs,
        "programs_at_once": ledger.most_alive,
        "calls": sum(ledger.outcomes.values()),
        "seconds": time.monotonic() - started_s,
        "outcomes": dict(ledger.outcomes),
        "endings": dict(ledger.endings),
        "before": dataclasses.asdict(before),
        "after": dataclasses.asdict(after),
        "growth_bytes_per_call": slope,
        "complaints": complaints(before, warm, after, ledger, slope if is_long else 0.0),
    }


async def _play(url: str, load: Load, ledger: Ledger, gateway: Connection) -> list[Stats]:
    """Run all programs at once, and observe the gateway meanwhile."""
    samples: list[Stats] = []
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(connector=connector) as client:
        each, more = divmod(load.calls, load.programs)
        work = [
            asyncio.create_task(SoakProgram(client, url, number, each + (number < more), load, ledger).run())
            for number in range(load.programs)
        ]
        while not all(task.done() for task in work):
            await asyncio.wait(work, timeout=SAMPLE_S)
            samples.append(await _ask(gateway, url))
        await asyncio.gather(*work)
    return samples


async def _rest(gateway: Connection, url: str, before: Stats, idle_s: float) -> Stats:
    """Wait until no more is left than before, or the last abandoned program must be gone."""
    settled, last_end_s = -1, 0.0
    while True:
        stats = await _ask(gateway, url)
        if stats.settled != settled:
            settled, last_end_s = stats.settled, time.monotonic()
        is_calm = not (stats.programs or stats.sessions or stats.active_calls)
        is_calm = is_calm and stats.tasks <= before.tasks and stats.sockets <= before.sockets
        if is_calm or time.monotonic() > last_end_s + idle_s + SPARE_S:
            return stats
        await asyncio.sleep(1.0)


async def _ask(gateway: Connection, url: str) -> Stats:
    once = {"connection": "close"}
    async with aiohttp.ClientSession() as client, client.get(url + "/metrics", headers=once) as response:
        families = text_string_to_metric_families(await response.text())
    gateway.send("stats")
    stats: Stats = await _receive(gateway)
    return dataclasses.replace(stats, series=sum(len(family.samples) for family in families))


async def _receive(connection: Connection) -> Any:
    return await asyncio.to_thread(connection.recv)


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
        process.join(SPARE_S)
        process.kill()


def _serve_engine(socket_path: Path, report: Connection) -> None:
    async def run() -> None:
        behaviour = FakeBehaviour(output_tokens=12, token_delay_s=0.01, fault_shares=FAULTS, slow_s=1.0)
        engine = FakeEngine(
            behaviour, name="fake", report_address=f"ipc://{socket_path}", keeps_requests=False
        )
        await engine.start()
        report.send(engine.base_url)
        while await asyncio.to_thread(_is_open, report):
            pass
        await engine.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _is_open(connection: Connection) -> bool:
    try:
        connection.recv()
    except EOFError:
        return False
    return True


def main() -> int:
    """Run the soak from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=int, default=2048, help="programs, all at once")
    parser.add_argument("--calls", type=int, default=50_000, help="calls of all programs together")
    parser.add_argument("--think", type=float, default=10.0, help="mean pause between a program's steps, s")
    idle_help = "seconds after which an abandoned program goes; long against a program's pauses"
    parser.add_argument("--idle", type=float, default=30.0, help=idle_help)
    patience_help = "seconds after which a client leaves a call that the engine never answers"
    parser.add_argument("--patience", type=float, default=20.0, help=patience_help)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    load = Load(options.programs, options.calls, options.think, options.patience)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(soak(load, options.idle, Path(folder)))
    if options.json:
        print(json.dumps(report))
    else:
        for name, found in report.items():
            print(f"{name:22} {found}")
    return 1 if report["complaints"] else 0


if __name__ == "__main__":
    sys.exit(main())
