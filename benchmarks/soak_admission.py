"""A soak of admission on real engines: memory is scarce all the time, clients vanish, and engines die.

    python benchmarks/soak_admission.py [--minutes 60] [--seed 0] [--store redis://...] [--json FILE]

Starts `autellix serve demo` as users do, with its default policy and two vLLM engines whose KV memory holds a
few contexts, and three tenants; what does not fit goes to host memory, which is scarce too. Agents run
programs of many shapes: with ends and without, with clients that leave in mid-call, long tool gaps, contexts
that grow for tens of calls, parallel branches, contexts that fill nearly all memory, and a fresh id for each
call. At seeded moments an engine is killed or stopped for some seconds and the backend restarts it, or its
prefix cache is reset.

Afterwards every call must have been answered, or left by its client, or lost with its engine; no call may
have taken longer than the bound; no engine may have stood still with calls, or have kept calls waiting while
none ran; no engine may have grown by more than its host memory; and nothing may be left: no open call, no
held-back request, no KV block in use, no program in the table. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families
from soak import growth

from autellix_backend.gateway.tenancy.tenants import key_line, new_key
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.bench.prompts import random_words
from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_wire.headers import ENGINE, FINAL, PROGRAM_ID, PROGRAM_NAME, THREAD_ID
from autellix_wire.paths import API_PREFIX, PROGRAMS_PATH

TENANTS = {"blue": 1.0, "green": 1.0, "red": 2.0}
"""By name, with their weights."""
BLOCK_TOKENS = 32
SLOTS = 8
REPLICAS = 2
SAMPLE_S = 0.5
LOGS_PERIOD_S = 10.0
PROGRAM_IDLE_S = 60.0
"""Programs that never end leave the gateway's table after so long, so that the end of the soak is near."""
MIN_UP_S = 20.0
"""An engine is harmed only once all have been up for so long: two deaths at once are another test."""
FREEZE_S = (3.0, 12.0)
HARMS = ("kill server", "kill core", "freeze core", "reset")
STILL_S = 20.0
"""An engine with calls that makes no step for longer stands still, unless it was harmed."""
IDLE_S = 2.0
"""An engine may keep calls waiting for so long while none runs, and for the age of a sample."""
GROWTH_BYTES = 256 << 20
"""What an engine may grow by, besides its host memory, once it has run for a while."""
SETTLED_S = 300.0
"""An engine's age when it is first weighed: plain vLLM's CPU build takes 500 MiB with its first 900 calls."""
RECOVERY_S = 60.0
"""How long after an engine is back calls may still be lost with it, or wait for it (`recovery_wait_s`)."""
REST_S = 60.0
COMPLAINT = re.compile(r"Traceback|Autellix scheduling failed|\bCRITICAL\b")


# The clients.

CHAT = "/v1/chat/completions"
OVERHEAD_TOKENS = 16
"""Of the chat template around a prompt, with a margin."""
LEAVES = 0.05
"""The share of calls whose client disconnects; half of their programs vanish with it."""
LONGEST_PATIENCE_S = 4.0
"""Until a client that leaves does so."""
STREAMS = 0.4
DOCUMENTED = ("engine_unavailable",)
"""The errors that a call may get whose engine was killed."""
PAUSE_S = 1.0
"""Before the next call, after one that failed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the programs of one kind do; each range is drawn from evenly."""

    share: float
    calls: tuple[int, int]
    first_tokens: tuple[int, int]
    added_tokens: tuple[int, int] = (20, 150)
    output_tokens: tuple[int, int] = (4, 48)
    gap_s: tuple[float, float] = (0.0, 1.0)
    """Between two calls, as of a tool."""
    width: int = 1
    """Calls at once, which share the context of the program."""
    list_tokens: int = 0
    """Of the list of tools that all its programs begin with."""
    endings: tuple[str, ...] = ("final", "delete")
    """How they end, each as often: with the last call, by request, or `never` (they only stop)."""
    has_fresh_ids: bool = False
    """Whether each call is a program of its own."""


def shapes(kv_tokens: int) -> Mapping[str, Shape]:
    """Return the shapes by name, for engines with this KV memory."""
    nearly_all = (int(0.7 * kv_tokens), int(0.95 * kv_tokens))
    return MappingProxyType(
        {
            "chat": Shape(share=5, calls=(2, 8), first_tokens=(50, 600)),
            "tools": Shape(
                share=5,
                calls=(3, 9),
                first_tokens=(20, 120),
                output_tokens=(2, 16),
                gap_s=(0.2, 4.0),
                list_tokens=kv_tokens // 5,
                endings=("final", "delete", "never"),
            ),
            "growing": Shape(
                share=3,
                calls=(15, 40),
                first_tokens=(200, 500),
                added_tokens=(40, 200),
                output_tokens=(4, 24),
                gap_s=(0.3, 8.0),
                list_tokens=kv_tokens // 10,
            ),
            "branches": Shape(share=3, calls=(2, 4), first_tokens=(300, 1200), width=4),
            "patient": Shape(share=2, calls=(2, 4), first_tokens=(400, 1500), gap_s=(15.0, 60.0)),
            "huge": Shape(share=1, calls=(1, 3), first_tokens=nearly_all, added_tokens=(0, 20)),
            "silent": Shape(share=3, calls=(1, 5), first_tokens=(200, 1500), endings=("never",)),
            "fresh": Shape(
                share=2, calls=(4, 10), first_tokens=(20, 300), endings=("never",), has_fresh_ids=True
            ),
        }
    )


ENDLESS = Shape(share=0, calls=(1 << 30, 1 << 30), first_tokens=(100, 400), gap_s=(0.5, 30.0), endings=())
"""Residents, which call until the soak ends and never end."""


@dataclasses.dataclass(slots=True)
class CallNote:
    """One call as its client saw it; times are those of `time.monotonic()`."""

    shape: str
    began_s: float
    ended_s: float = 0.0
    engine: str = ""
    outcome: str = ""
    """`answered`, `left` (the client disconnected), `lost` (the documented error), or `wrong`."""
    detail: str = ""


@dataclasses.dataclass(slots=True)
class Notes:
    """What the clients saw."""

    calls: list[CallNote] = dataclasses.field(default_factory=list)
    programs: Counter[str] = dataclasses.field(default_factory=Counter)
    """Begun ones, by shape."""
    endings: Counter[str] = dataclasses.field(default_factory=Counter)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What all clients of a soak have in common."""

    http: aiohttp.ClientSession
    url: str
    model: str
    kv_tokens: int
    hang_s: float
    """A call that takes longer counts as never answered."""
    notes: Notes
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)


class SoakAgent:
    """Runs one program after the other for a tenant, until it is told to stop."""

    def __init__(self, client: Client, tenant: str, key: str, seed: str) -> None:
        self._client = client
        self._tenant = tenant
        self._key = {"Authorization": f"Bearer {key}"}
        self._seed = seed
        self._random = random.Random(seed)
        self._shapes = shapes(client.kv_tokens)

    async def run(self, stop: asyncio.Event) -> None:
        """Run programs of all shapes."""
        names, weights = zip(*((name, shape.share) for name, shape in self._shapes.items()), strict=True)
        await self._sleep(stop, self._random.uniform(0, 10))
        while not stop.is_set():
            (name,) = self._random.choices(names, weights)
            await self._program(name, self._shapes[name], stop)

    async def reside(self, stop: asyncio.Event) -> None:
        """Run one program that never ends."""
        await self._program("endless", ENDLESS, stop)

    async def _program(self, name: str, shape: Shape, stop: asyncio.Event) -> None:
        rng, notes = self._random, self._client.notes
        program = f"{name}-{self._seed}-{next(self._client.numbers)}"
        notes.programs[name] += 1
        ending = rng.choice(shape.endings) if shape.endings else "never"
        tools = random_words(random.Random(f"{self._tenant}:{name}"), shape.list_tokens)
        words = tools + random_words(rng, rng.randint(*shape.first_tokens))
        calls = rng.randint(*shape.calls)
        for number in range(calls):
            output = rng.randint(*shape.output_tokens)
            if len(words) + output + OVERHEAD_TOKENS > self._client.kv_tokens:
                # vLLM would refuse it.
                words = words[: self._client.kv_tokens - output - OVERHEAD_TOKENS]
            is_last = number == calls - 1 or stop.is_set()
            id_ = f"{program}-{number}" if shape.has_fresh_ids else program
            stays = await self._step(id_, name, words, output, shape, is_final=is_last and ending == "final")
            if not stays:
                ending = "vanished"
                break
            if is_last:
                break
            await self._sleep(stop, rng.uniform(*shape.gap_s))
            words = words + random_words(rng, output + rng.randint(*shape.added_tokens))
        if ending == "delete":
            with contextlib.suppress(aiohttp.ClientError):
                url = f"{self._client.url}{PROGRAMS_PATH}/{program}"
                async with self._client.http.delete(url, headers=self._key):
                    pass
        notes.endings[ending] += 1

    async def _step(
        self, program: str, name: str, words: list[str], output: int, shape: Shape, *, is_final: bool
    ) -> bool:
        """Make the calls of one step; return whether the client is still there."""
        rng = self._random
        branches = [words]
        if shape.width > 1:
            branches = [words + random_words(rng, rng.randint(5, 100)) for _ in range(shape.width)]
            branches = [branch[: self._client.kv_tokens - output - OVERHEAD_TOKENS] for branch in branches]
        patience_s = rng.uniform(0, LONGEST_PATIENCE_S) if rng.random() < LEAVES else None
        calls = [
            self._call(program, name, " ".join(branch), output, str(at), patience_s, is_final=is_final)
            for at, branch in enumerate(branches)
        ]
        await asyncio.gather(*calls)
        return patience_s is None or rng.random() < 0.5

    async def _call(
        self,
        program: str,
        name: str,
        prompt: str,
        output: int,
        thread: str,
        patience_s: float | None,
        *,
        is_final: bool,
    ) -> None:
        client, note = self._client, CallNote(shape=name, began_s=time.monotonic())
        client.notes.calls.append(note)
        body = {
            "model": client.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": output,
            "ignore_eos": True,
            "stream": self._random.random() < STREAMS,
        }
        headers = {**self._key, PROGRAM_ID: program, THREAD_ID: thread, PROGRAM_NAME: name}
        if is_final:
            headers[FINAL] = "true"
        try:
            async with asyncio.timeout(client.hang_s if patience_s is None else patience_s):
                await self._ask(body, headers, note)
        except TimeoutError:
            note.outcome = "wrong" if patience_s is None else "left"
            note.detail = f"no answer within {client.hang_s:g} s" if patience_s is None else ""
        except aiohttp.ClientError as error:
            note.outcome, note.detail = "wrong", f"{type(error).__name__}: {error}"
        note.ended_s = time.monotonic()
        if note.outcome in ("lost", "wrong"):
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, body: Mapping[str, Any], headers: Mapping[str, str], note: CallNote) -> None:
        async with self._client.http.post(self._client.url + CHAT, json=body, headers=headers) as response:
            note.engine = response.headers.get(ENGINE, "")
            content = await response.read()
        note.outcome, note.detail = _outcome(response.status, content, is_stream=bool(body["stream"]))

    async def _sleep(self, stop: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), seconds)


def _outcome(status: int, content: bytes, *, is_stream: bool) -> tuple[str, str]:
    if status == 200 and not is_stream:
        return ("answered", "") if b'"choices"' in content else ("wrong", f"200: {content[:200]!r}")
    if status == 200 and b"data: [DONE]" in content and b'data: {"error"' not in content:
        return "answered", ""
    line = next((line for line in content.splitlines() if line.startswith(b'data: {"error"')), content)
    try:
        code = json.loads(line.removeprefix(b"data: "))["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return "wrong", f"{status}: {content[-200:]!r}"
    return ("lost", str(code)) if code in DOCUMENTED else ("wrong", f"{status}: {content[:300]!r}")


# The soak.


@dataclasses.dataclass(slots=True)
class Harm:
    """An engine that was killed or stopped; times are those of `time.monotonic()`."""

    engine: str
    kind: str
    at_s: float
    back_s: float | None = None


@dataclasses.dataclass(slots=True)
class Watch:
    """What the engines and the gateway showed."""

    samples: Counter[str] = dataclasses.field(default_factory=Counter)
    """Samples of an engine: all, with inactive programs, over their memory, and with a boost."""
    most_inactive: int = 0
    still: dict[str, tuple[int, float]] = dataclasses.field(default_factory=dict)
    """By engine with calls: its step, and since when it is at that."""
    idle: dict[str, float] = dataclasses.field(default_factory=dict)
    """By engine whose calls all wait: since when."""
    longest_idle_s: float = 0.0
    standstills: list[str] = dataclasses.field(default_factory=list)
    log_lines: set[str] = dataclasses.field(default_factory=set)
    memory: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Settled calls and bytes of the gateway."""
    engine_bytes: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """By process of an engine: what it took once it had settled, and at most."""

    @property
    def engine_growth_bytes(self) -> int:
        """What an engine grew by at most."""
        return max((most - first for first, most in self.engine_bytes.values()), default=0)

    def share(self, name: str) -> float:
        """Return the share of the samples of this kind."""
        return round(self.samples[name] / self.samples["all"], 3)


class Soak:
    """One soak, from start to verdict."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._kv_tokens = (options.kv_blocks - 1) * BLOCK_TOKENS
        self._keys = {name: new_key() for name in (*TENANTS, "admin")}
        self._random = random.Random(options.seed)
        self._notes = Notes()
        self._watch = Watch()
        self._harms: list[Harm] = []
        self._backend = BackendProcess("soak", "demo", self._settings(), folder)
        self._resets: Counter[int] = Counter()
        """Of prefix caches, by the status of the answer."""
        self._up_since_s = 0.0

    async def run(self) -> dict[str, Any]:
        """Run it; return its findings."""
        # Where the engines' logs lie.
        os.environ["AUTELLIX_CACHE_DIR"] = str(self._folder)
        # Without it engines have no path that resets the prefix cache.
        os.environ["VLLM_SERVER_DEV_MODE"] = "1"
        with self._backend:
            self._backend.launch()
            await asyncio.to_thread(self._backend.wait_ready)
            print(f"ready at {self._backend.base_url}, logs in {self._folder}", file=sys.stderr)
            return await self._play()

    def _settings(self) -> dict[str, dict[str, Any]]:
        options = self._options
        lines: list[str] = []
        for name, key in self._keys.items():
            lines += ["[[tenant]]", f'name = "{name}"', f'keys = ["{key_line(key)}"]']
            lines.append("admin = true" if name == "admin" else f"weight = {TENANTS[name]}")
        tenants = self._folder / "tenants.toml"
        tenants.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return {
            "gateway": {"port": 0, "program_idle_s": PROGRAM_IDLE_S, "tenants_file": str(tenants)},
            "engine": {
                "replicas": REPLICAS,
                "max_num_seqs": SLOTS,
                "kv_host_gib": options.host_gib,
                "extra_args": [
                    *("--block-size", str(BLOCK_TOKENS)),
                    *("--num-gpu-blocks-override", str(options.kv_blocks)),
                    *("--max-model-len", str(self._kv_tokens)),
                ],
            },
            "store": {"url": options.store},
        }

    async def _play(self) -> dict[str, Any]:
        options, stop, began_s = self._options, asyncio.Event(), time.monotonic()
        self._up_since_s = began_s
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as http:
            client = Client(
                http=http,
                url=self._backend.base_url,
                model=DEMO_MODEL_NAME,
                kv_tokens=self._kv_tokens,
                hang_s=2 * options.bound + 120,
                notes=self._notes,
            )
            side = [asyncio.create_task(self._observe(http))]
            if options.harm_every:
                side.append(asyncio.create_task(self._harm(http, stop)))
            work = [asyncio.create_task(run) for run in self._agents(client, stop)]
            await asyncio.sleep(60 * options.minutes)
            stop.set()
            await asyncio.gather(*work)
            left = await self._rest(http)
            for task in side:
                task.cancel()
            for task in side:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._read_logs()
        return self._report(time.monotonic() - began_s, left)

    def _agents(self, client: Client, stop: asyncio.Event) -> Iterator[Any]:
        for tenant in TENANTS:
            key = self._keys[tenant]
            yield SoakAgent(client, tenant, key, f"{self._options.seed}-{tenant}-resident").reside(stop)
            for number in range(self._options.agents):
                yield SoakAgent(client, tenant, key, f"{self._options.seed}-{tenant}-{number}").run(stop)

    # Watching.

    async def _ask(self, http: aiohttp.ClientSession, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self._keys['admin']}"}
        async with http.get(self._backend.base_url + path, headers=headers) as response:
            text = await response.text()
            return json.loads(text) if response.content_type == "application/json" else text

    async def _engines(self, http: aiohttp.ClientSession) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._ask(http, API_PREFIX + "/engines"))["engines"]
        return found

    async def _observe(self, http: aiohttp.ClientSession) -> None:
        next_logs_s = 0.0
        while True:
            now = time.monotonic()
            for row in await self._engines(http):
                self._see(row, now)
            if now >= next_logs_s:
                next_logs_s = now + LOGS_PERIOD_S
                self._read_logs()
                settled = sum(bool(call.ended_s) for call in self._notes.calls)
                # The gateway is the only child of its guard.
                (gateway,) = self._guard().children()
                self._watch.memory.append((settled, gateway.memory_info().rss))
                self._weigh_engines()
            await asyncio.sleep(SAMPLE_S)

    def _weigh_engines(self) -> None:
        for process in self._guard().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                is_old = time.time() - process.create_time() > SETTLED_S
                if is_old and "EngineCore" in " ".join(process.cmdline()):
                    taken = process.memory_info().rss
                    first, most = self._watch.engine_bytes.get(process.pid, (taken, taken))
                    self._watch.engine_bytes[process.pid] = first, max(most, taken)

    def _see(self, row: Mapping[str, Any], now: float) -> None:
        """Note one sample of an engine, and whether it has calls and makes no step."""
        watch, name = self._watch, row["name"]
        watch.samples["all"] += 1
        if row["state"] != "up" or row["open_calls"] <= row["queued_calls"]:
            watch.still.pop(name, None)
        if row["state"] != "up" or row["running"] or not row["waiting"]:
            watch.idle.pop(name, None)
        if row["state"] != "up":
            return
        idle_since_s = watch.idle.setdefault(name, now) if row["waiting"] and not row["running"] else now
        if now - idle_since_s > watch.longest_idle_s and not self._was_harmed(idle_since_s, now, name):
            watch.longest_idle_s = now - idle_since_s
        if row["active_programs"] is not None:
            watch.samples["inactive"] += row["inactive_programs"] > 0
            watch.most_inactive = max(watch.most_inactive, row["inactive_programs"])
            is_over = row["working_set_tokens"] > row["working_set_capacity_tokens"]
            watch.samples["over"] += is_over and row["active_programs"] > 1
        watch.samples["boost"] += bool(row["boost_strength_s"])
        if row["open_calls"] <= row["queued_calls"]:
            return
        step, since_s = watch.still.setdefault(name, (row["step"], now))
        if step != row["step"]:
            watch.still[name] = row["step"], now
        elif now - since_s > STILL_S and not self._was_harmed(since_s, now, name):
            watch.standstills.append(f"{name} made no step from {step} on for {STILL_S:g} s: {row}")
            # Once for each.
            watch.still[name] = row["step"], float("inf")

    def _read_logs(self) -> None:
        for path in (*self._folder.glob("*.log"), *self._folder.glob("logs/*.log")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if COMPLAINT.search(line):
                    self._watch.log_lines.add(f"{path.name}: {line[:300]}")

    # Harming.

    async def _harm(self, http: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._random.uniform(0.6, 1.4) * self._options.harm_every)
            await self._all_up(http)
            if not stop.is_set():
                row = self._random.choice(await self._engines(http))
                await self._harm_one(http, row, self._random.choice(HARMS))

    async def _all_up(self, http: aiohttp.ClientSession) -> None:
        """Wait until all engines have been up for a while."""
        while time.monotonic() - self._up_since_s < MIN_UP_S:
            if any(row["state"] != "up" for row in await self._engines(http)):
                self._up_since_s = time.monotonic()
            await asyncio.sleep(SAMPLE_S)

    async def _harm_one(self, http: aiohttp.ClientSession, row: Mapping[str, Any], kind: str) -> None:
        if kind == "reset":
            async with http.post(row["base_url"] + "/reset_prefix_cache") as response:
                self._resets[response.status] += 1
            return
        server, core = self._processes(row["base_url"].rpartition(":")[2])
        harm = Harm(row["name"], kind, time.monotonic())
        self._harms.append(harm)
        print(f"{kind} of {row['name']}", file=sys.stderr)
        if kind == "freeze core":
            core.suspend()
            await asyncio.sleep(self._random.uniform(*FREEZE_S))
            with contextlib.suppress(psutil.NoSuchProcess):
                core.resume()
        else:
            (server if kind == "kill server" else core).kill()
            # The next one waits until the death is seen, so that two samples do not lie on one side of it.
            await asyncio.sleep(2.0)
        up: set[str] = set()
        while row["name"] not in up:
            await asyncio.sleep(SAMPLE_S)
            up = {each["name"] for each in await self._engines(http) if each["state"] == "up"}
        harm.back_s = self._up_since_s = time.monotonic()

    def _guard(self) -> psutil.Process:
        assert self._backend._process is not None
        return psutil.Process(self._backend._process.pid)

    def _processes(self, port: str) -> tuple[psutil.Process, psutil.Process]:
        """Return the server on this port, and its engine core."""
        for server in self._guard().children(recursive=True):
            command = " ".join(server.cmdline())
            if f"--port {port} " in command and "vllm.entrypoints" in command and "guard.py" not in command:
                below = server.children(recursive=True)
                return server, next(each for each in below if "EngineCore" in " ".join(each.cmdline()))
        raise RuntimeError(f"no engine listens on {port}")

    def _was_harmed(self, began_s: float, ended_s: float, engine: str | None = None) -> bool:
        """Whether an engine was down, or had been until shortly before, in this time."""
        return any(
            harm.at_s - SAMPLE_S <= ended_s and (harm.back_s is None or began_s <= harm.back_s + RECOVERY_S)
            for harm in self._harms
            if engine in (None, harm.engine)
        )

    # The verdict.

    async def _rest(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        """Wait until nothing is left, or should not be any more."""
        deadline_s = time.monotonic() + PROGRAM_IDLE_S + REST_S
        while True:
            left = await self._left(http)
            if not left or time.monotonic() > deadline_s:
                return left
            await asyncio.sleep(SAMPLE_S)

    async def _left(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        names = ("open_calls", "queued_calls", "running", "waiting", "inactive_programs", "kv_share")
        left: dict[str, Any] = {}
        for row in await self._engines(http):
            if held := {name: row[name] for name in names if row[name]}:
                left[row["name"]] = held
        for family in text_string_to_metric_families(await self._ask(http, "/metrics")):
            if family.name == "autellix_stored":
                left |= {sample.labels["kind"]: sample.value for sample in family.samples if sample.value}
        return left

    def _report(self, seconds: float, left: dict[str, Any]) -> dict[str, Any]:
        calls, watch = self._notes.calls, self._watch
        took_s = sorted(call.ended_s - call.began_s for call in calls)
        longest_s: dict[str, float] = {}
        for call in calls:
            longest_s[call.shape] = max(longest_s.get(call.shape, 0.0), round(call.ended_s - call.began_s, 1))
        return {
            "seconds": round(seconds, 1),
            "seed": self._options.seed,
            "calls": len(calls),
            "outcomes": dict(Counter(call.outcome for call in calls)),
            "programs": dict(self._notes.programs),
            "endings": dict(self._notes.endings),
            "answered by": dict(Counter(call.engine for call in calls if call.outcome == "answered")),
            "harms": dict(Counter(harm.kind for harm in self._harms)),
            "resets, by status": dict(self._resets),
            "longest wait while none ran, s": round(watch.longest_idle_s, 1),
            "most growth of an engine, MiB": watch.engine_growth_bytes >> 20,
            "longest call of each shape, s": longest_s,
            "p50, p99 of calls, s": [round(took_s[int(part * len(took_s))], 2) for part in (0.5, 0.99)],
            "samples with inactive programs": watch.share("inactive"),
            "most inactive programs": watch.most_inactive,
            "samples over memory": watch.share("over"),
            "samples with a boost": watch.share("boost"),
            "growth, bytes per call": round(growth(watch.memory[len(watch.memory) // 3 :]), 1),
            "left": left,
            "complaints": self._complaints(longest_s, left),
        }

    def _complaints(self, longest_s: Mapping[str, float], left: Mapping[str, Any]) -> list[str]:
        watch, bound_s, calls = self._watch, self._options.bound, self._notes.calls
        found = [f"{call.shape}: {call.detail}" for call in calls if call.outcome == "wrong"]
        found += [
            f"{call.shape}: lost without a dead engine: {call.detail}"
            for call in calls
            if call.outcome == "lost" and not self._was_harmed(call.began_s, call.ended_s)
        ]
        found += [
            f"{shape}: a call took {seconds:.0f} s, the bound is {bound_s:g}"
            for shape, seconds in longest_s.items()
            if seconds > bound_s
        ]
        found += watch.standstills
        found += [line for line in sorted(watch.log_lines) if not self._is_expected(line)]
        if left:
            found.append(f"left: {left}")
        if watch.longest_idle_s > IDLE_S + 2 * SAMPLE_S:
            found.append(f"calls waited for {watch.longest_idle_s:.1f} s while none ran")
        if watch.engine_growth_bytes > self._options.host_gib * (1 << 30) + GROWTH_BYTES:
            found.append(f"an engine grew by {watch.engine_growth_bytes >> 20} MiB")
        if set(self._resets) - {200}:
            found.append(f"resets of prefix caches: {dict(self._resets)}")
        if not watch.samples["inactive"]:
            found.append("admission never acted: no program was ever inactive")
        if not watch.samples["boost"]:
            found.append("the boost never acted")
        return found

    def _is_expected(self, line: str) -> bool:
        """Whether a line of a log only reports that an engine died, which we killed."""
        has_died = any(harm.kind == "kill core" for harm in self._harms)
        return has_died and line.startswith("replica-") and "Autellix" not in line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long programs are begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agents", type=int, default=8, help="agents of each tenant, one program each")
    parser.add_argument("--kv-blocks", type=int, default=161, help=f"of {BLOCK_TOKENS} tokens, per engine")
    parser.add_argument("--bound", type=float, default=240.0, help="the longest a call may take, s")
    parser.add_argument("--host-gib", type=float, default=0.03, help="host memory of an engine; 0: none")
    harm_help = "mean time between two harms of an engine, s; 0 for none"
    parser.add_argument("--harm-every", type=float, default=150.0, help=harm_help)
    parser.add_argument("--store", default="memory://", help="process table, as of `autellix serve`")
    parser.add_argument("--out", type=Path, help="folder of logs that stays; a temporary one otherwise")
    parser.add_argument("--json", type=Path, help="file for the report")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        folder = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(Soak(options, folder.resolve()).run())
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for name, found in report.items():
        print(f"{name:32} {found}")
    return 1 if report["complaints"] else 0


if __name__ == "__main__":
    sys.exit(main())
