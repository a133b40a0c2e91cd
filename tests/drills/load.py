"""Programs that call through all gateways without a pause, and record every answer.

Residents stay for the whole drill: their service is compared at its end. Visitors make a few calls and go, so
that programs begin and end whatever is out of order at the moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tests.drills.processes import Server

from autellix_wire.headers import FINAL, PROGRAM_ID, SESSION_ID, THREAD_ID
from autellix_wire.paths import PROGRAMS_PATH, SESSIONS_PATH

CHAT = "/v1/chat/completions"
RESIDENTS = 4
VISITORS = 2
VISITOR_CALLS = 6
MIN_CALLS = 50
"""So many calls has a resident at least: one that was lost with its gateway is 2 % of them at most."""
BEAT_PERIOD_S = 1.0
HANG_S = 60.0
PAUSE_S = 0.1
"""Before a client whose call was not answered makes the next."""
RECEIPT = b": autellix "
ERROR = b'data: {"error":'
DONE = b"data: [DONE]"
STARTING = b'"code":"starting"'
"""In an error object."""


class Fate(enum.Enum):
    """The outcome of a call."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """The connection failed, or the gateway was still starting: none received the call."""
    CUT = "cut"
    """The connection to the gateway broke."""
    FAILED = "failed"
    """The answer was an error object."""
    UNCLEAR = "unclear"
    """An error without an error object, or an end without one."""
    HUNG = "hung"


@dataclass(slots=True)
class Ledger:
    """The clients' records."""

    fates: Counter[Fate] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Of calls that were not answered."""
    calls: Counter[str] = field(default_factory=Counter)
    """Answered ones by program."""
    by_gateway: Counter[str] = field(default_factory=Counter)
    """Answered ones by gateway."""
    service_s: dict[str, float] = field(default_factory=dict)
    """The receipts' sum, by program."""

    def note(self, fate: Fate, reason: str) -> None:
        """Count a call that was not answered."""
        self.fates[fate] += 1
        self.reasons[f"{fate.value}: {reason}"] += 1

    def note_answer(self, program: str, gateway: Server, receipt: dict[str, Any]) -> None:
        """Count an answered call."""
        self.fates[Fate.ANSWERED] += 1
        self.calls[program] += 1
        self.by_gateway[gateway.name] += 1
        self.service_s[program] = self.service_s.get(program, 0.0) + receipt["service_s"]


class _FailedError(Exception):
    """A call was not answered."""

    def __init__(self, fate: Fate, reason: str) -> None:
        super().__init__(reason)
        self.fate = fate


class Load:
    """Steady work for a cluster's gateways."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        gateways: Sequence[Server],
        *,
        name: str,
        model: str,
        is_offered: Callable[[Server], bool] = lambda _: True,
    ) -> None:
        """Work through these gateways, as long as they are offered; one of them always is."""
        self.ledger = Ledger()
        self.residents = [f"{name}-resident-{at}" for at in range(RESIDENTS)]
        self.visits = 0
        """Visitors that have come and gone."""
        self._name = name
        self._client = client
        self._gateways = gateways
        self._model = model
        self._is_offered = is_offered
        self._turns = itertools.count()
        self._random = random.Random(11)
        self._working = RESIDENTS + VISITORS
        self._is_over = False
        self._has_ended = False
        self._has_rested = asyncio.Event()
        self._may_leave = asyncio.Event()

    async def run(self) -> None:
        """Work until the drill lets the residents leave."""
        residents = [self._reside(name, has_session=at % 2 == 0) for at, name in enumerate(self.residents)]
        visitors = [self._visit(f"{self._name}-visitor-{at}") for at in range(VISITORS)]
        try:
            await asyncio.gather(*residents, *visitors)
        finally:
            self._has_ended = True
            self._has_rested.set()

    async def more(self, calls: int, gateway: Server | None = None) -> None:
        """Return once so many further calls are answered, through one gateway or any."""
        goal = self._answers(gateway) + calls
        while self._answers(gateway) < goal:
            assert not self._has_ended, "a client has failed"
            await asyncio.sleep(PAUSE_S)

    async def rest(self) -> None:
        """Stop the visitors, and return once the residents have enough calls and are idle."""
        self._is_over = True
        await self._has_rested.wait()

    def leave(self) -> None:
        """End the idle residents."""
        self._may_leave.set()

    def _answers(self, gateway: Server | None) -> int:
        return self.ledger.fates[Fate.ANSWERED] if gateway is None else self.ledger.by_gateway[gateway.name]

    async def _reside(self, name: str, *, has_session: bool) -> None:
        async with self._session(name) if has_session else contextlib.nullcontext():
            while not self._is_over or self.ledger.calls[name] < MIN_CALLS:
                await self._step(name, name if has_session else None)
            self._stop_working()
            await self._may_leave.wait()
            if not has_session:
                await self._call_last(name)

    async def _visit(self, name: str) -> None:
        while not self._is_over:
            program, ending = f"{name}-{self.visits}", self.visits % 3
            async with self._session(program) if ending == 0 else contextlib.nullcontext():
                for _ in range(VISITOR_CALLS):
                    await self._step(program, program if ending == 0 else None)
                if ending == 1:
                    await self._call_last(program)
                elif ending == 2:
                    await self._control("DELETE", f"{PROGRAMS_PATH}/{program}", (204, 404))
            self.visits += 1
        self._stop_working()

    def _stop_working(self) -> None:
        self._working -= 1
        if not self._working:
            self._has_rested.set()

    async def _step(self, program: str, session: str | None) -> None:
        """Make a call, or two at once, which go to different gateways."""
        threads = ("0", "1") if next(self._turns) % 4 == 0 else ("0",)
        await asyncio.gather(*(self._call(program, session, thread=thread) for thread in threads))

    async def _call_last(self, program: str) -> None:
        while not await self._call(program, None, is_final=True):
            pass

    async def _call(
        self, program: str, session: str | None, *, thread: str = "0", is_final: bool = False
    ) -> bool:
        """Make a call and record its outcome; return whether it was answered."""
        gateway = self._next_gateway()
        headers = {PROGRAM_ID: program, THREAD_ID: thread}
        if session is not None:
            headers[SESSION_ID] = session
        if is_final:
            headers[FINAL] = "true"
        try:
            async with asyncio.timeout(HANG_S):
                receipt = await self._ask(gateway, headers, is_stream=self._random.random() < 0.3)
        except TimeoutError:
            self.ledger.note(Fate.HUNG, gateway.name)
        except aiohttp.ClientConnectorError:
            self.ledger.note(Fate.REFUSED, gateway.name)
        except aiohttp.ClientError as error:
            self.ledger.note(Fate.CUT, f"{gateway.name} {type(error).__name__}")
        except _FailedError as error:
            self.ledger.note(error.fate, str(error))
        else:
            self.ledger.note_answer(program, gateway, receipt)
            return True
        await asyncio.sleep(PAUSE_S)
        return False

    async def _ask(self, gateway: Server, headers: dict[str, str], *, is_stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": "What is the weather like?"}],
            "max_tokens": 4,
        }
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self._client.post(gateway.url + CHAT, json=body, headers=headers) as response:
            content = await response.read()
            if response.status != 200:
                raise _failure(f"status {response.status}", content)
            return _streamed_receipt(content) if is_stream else dict(json.loads(content)["autellix"])

    def _next_gateway(self) -> Server:
        turn = next(self._turns) % len(self._gateways)
        in_turn = [*self._gateways[turn:], *self._gateways[:turn]]
        return next(filter(self._is_offered, in_turn), in_turn[0])

    @asynccontextmanager
    async def _session(self, name: str) -> AsyncIterator[None]:
        await self._control("POST", SESSIONS_PATH, (200, 201), {"session_id": name})
        beats = asyncio.create_task(self._beat(name))
        try:
            yield
        finally:
            beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beats
        await self._control("DELETE", f"{SESSIONS_PATH}/{name}", (204, 404))

    async def _beat(self, name: str) -> None:
        while True:
            await asyncio.sleep(BEAT_PERIOD_S)
            status = await self._control("POST", f"{SESSIONS_PATH}/{name}/heartbeat", (200, 404))
            if status == 404:
                await self._control("POST", SESSIONS_PATH, (200, 201), {"session_id": name})

    async def _control(
        self, method: str, path: str, expected: Sequence[int], body: dict[str, str] | None = None
    ) -> int:
        """Ask one gateway, and where there is none the next."""
        while True:
            gateway = self._next_gateway()
            try:
                async with self._client.request(method, gateway.url + path, json=body) as response:
                    if STARTING in await response.read():
                        await asyncio.sleep(PAUSE_S)
                        continue
                    if response.status not in expected:
                        self.ledger.note(Fate.UNCLEAR, f"{method} {path}: {response.status}")
                    return response.status
            except aiohttp.ClientError:
                await asyncio.sleep(PAUSE_S)


def _streamed_receipt(content: bytes) -> dict[str, Any]:
    lines = content.splitlines()
    if errors := [line for line in lines if line.startswith(ERROR)]:
        raise _failure("in a stream", errors[0].removeprefix(b"data: "))
    if DONE not in lines:
        raise _FailedError(Fate.UNCLEAR, "a stream without an end")
    (receipt,) = (line.removeprefix(RECEIPT) for line in lines if line.startswith(RECEIPT))
    return dict(json.loads(receipt))


def _failure(where: str, content: bytes) -> _FailedError:
    try:
        error = json.loads(content)["error"]
        code, message = error["code"], error["message"]
    except (ValueError, TypeError, KeyError):
        return _FailedError(Fate.UNCLEAR, f"{where}: {content[:200]!r}")
    if STARTING in content:
        return _FailedError(Fate.REFUSED, f"{where}: {code}")
    return _FailedError(Fate.FAILED if code and message else Fate.UNCLEAR, f"{where}: {code}")


@asynccontextmanager
async def working(
    gateways: Sequence[Server],
    *,
    name: str,
    model: str,
    is_offered: Callable[[Server], bool] = lambda _: True,
) -> AsyncIterator[Load]:
    """Yield a load whose programs bear the name; it must rest and leave before the end."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=HANG_S + 5)
    ) as client:
        load = Load(client, gateways, name=name, model=model, is_offered=is_offered)
        task = asyncio.create_task(load.run())
        try:
            yield load
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
