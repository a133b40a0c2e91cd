"""The clients of the soak of admission: programs of many shapes, some of which vanish, stall or never end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import aiohttp

from autellix_lab.bench.prompts import random_words
from autellix_wire.headers import ENGINE, FINAL, PROGRAM_ID, PROGRAM_NAME, THREAD_ID
from autellix_wire.paths import PROGRAMS_PATH

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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(slots=True)
class CallNote:
    """One call as its client saw it; times are those of `time.monotonic()`."""

    shape: str
    began_s: float
    ended_s: float = 0.0
    engine: str = ""
    outcome: str = ""
    """`answered`, `left` (the client disconnected), `lost` (the documented error), or `wrong`."""
    detail: str = ""


@dataclass(slots=True)
class Notes:
    """What the clients saw."""

    calls: list[CallNote] = field(default_factory=list)
    open: dict[int, tuple[CallNote, str, str]] = field(default_factory=dict)
    """By number: open calls, with their program and tenant."""
    programs: Counter[str] = field(default_factory=Counter)
    """Begun ones, by shape."""
    endings: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What all clients of a soak have in common."""

    http: aiohttp.ClientSession
    url: str
    model: str
    kv_tokens: int
    hang_s: float
    """A call that takes longer counts as never answered."""
    notes: Notes
    numbers: Iterator[int] = field(default_factory=itertools.count)


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
        number = next(client.numbers)
        client.notes.open[number] = note, program, self._tenant
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
        del client.notes.open[number]
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
