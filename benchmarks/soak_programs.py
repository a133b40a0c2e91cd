"""The soak's clients: programs that call, branch, time out, and end in every possible way."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

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


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast programs go on."""

    think_s: float
    """The mean pause between a program's steps."""
    patience_s: float
    """The timeout of every call: the engine never answers some."""


@dataclass(slots=True)
class Ledger:
    """The clients' results."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Calls by outcome: a status, `left` (the client disconnected), `broken` (in mid-answer)."""
    endings: Counter[str] = field(default_factory=Counter)
    surprises: Counter[str] = field(default_factory=Counter)
    """Errors that no injected fault explains."""
    alive: int = 0
    most_alive: int = 0


class SoakProgram:
    """One program of the soak."""

    def __init__(
        self, client: aiohttp.ClientSession, url: str, number: int, calls: int, pace: Pace, ledger: Ledger
    ) -> None:
        self._client = client
        self._url = url
        self._random = random.Random(number)
        self._name = f"soak-{number}"
        self._calls = calls
        self._pace = pace
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
            await asyncio.sleep(self._random.expovariate(1 / self._pace.think_s))
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
        patience_s = self._random.uniform(0, IMPATIENT_S) if is_impatient else self._pace.patience_s
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
