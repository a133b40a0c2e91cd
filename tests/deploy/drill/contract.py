"""What programs and operators may rely on: the same questions to one machine and to a cluster."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from tests.deploy.drill.costs import described, processor_seconds

from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_wire.headers import FINAL, PROGRAM_ID
from autellix_wire.paths import API_PREFIX, PROGRAMS_PATH

ENGINES_PATH = f"{API_PREFIX}/engines"
PATIENCE_S = 600.0
LOOK_PERIOD_S = 0.05
SHORT_CALLS, SHORT_TOKENS = 3, 6
LONG_CALLS, LONG_TOKENS = 6, 120
ROUNDS = 3
"""The first one shows the engines how sizes spread: policy `boost` learns it from programs that end."""
UNKNOWN = "unknown"
NULL = "NoneType"
"""The form of a null."""


class Address(Protocol):
    """A gateway."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def url(self) -> str:
        """Its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Gateways and how many engines they share."""

    name: str
    gateways: Sequence[Address]
    engines: int


@dataclass(slots=True)
class Order:
    """When short and long programs ended that competed, in seconds from the first one's start."""

    short_s: list[float] = field(default_factory=list)
    long_s: list[float] = field(default_factory=list)

    @property
    def short_first(self) -> float:
        """The share of pairs in which the short program ended first."""
        pairs = [short < long for short in self.short_s for long in self.long_s]
        return sum(pairs) / len(pairs)

    def __str__(self) -> str:
        short_s, long_s = map(statistics.mean, (self.short_s, self.long_s))
        return f"{self.short_first:.0%} short first; short end at {short_s:.1f} s, long at {long_s:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a backend said while programs waited and ran, and of calls that it had answered."""

    orders: list[Order]
    tokens: list[tuple[int, int]]
    """Prompt and output tokens of the same calls."""
    answers: list[str]
    shapes: Mapping[str, object]
    """The form of each answer to operators and of receipts: names, and the kinds of values."""
    states: frozenset[str]
    """Of programs, in `ps` under load."""
    policies: frozenset[str]
    is_measured: bool
    """Whether receipts are the engine's own numbers."""
    readiness: str
    why: str
    """An explanation of a waiting call."""
    costs: str
    """What its processes have had of processors while programs competed, by part."""


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client that keeps no connections: gateways come and go."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


async def get(session: aiohttp.ClientSession, gateway: Address, path: str) -> Any:
    """Return what a gateway answers, whatever its status."""
    async with session.get(gateway.url + path) as response:
        return await response.json()


async def chat(
    session: aiohttp.ClientSession,
    gateway: Address,
    program: str,
    tokens: int,
    *,
    text: str = "Good day.",
    is_last: bool = False,
) -> dict[str, Any]:
    """Make a call, the program's last one or not; return the answer with its receipt."""
    body = {
        "model": DEMO_MODEL_NAME,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    headers = {PROGRAM_ID: program, **({FINAL: "true"} if is_last else {})}
    async with session.post(gateway.url + "/v1/chat/completions", json=body, headers=headers) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


async def until(what: str, condition: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> None:
    """Wait for what a gateway says."""
    assert await comes_true(condition, patience_s), f"{what}: not within {patience_s:g} s"


async def comes_true(condition: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> bool:
    """Return whether a condition comes to hold."""
    deadline = time.monotonic() + patience_s
    while not await _holds(condition):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_PERIOD_S)
    return True


async def _holds(condition: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await condition()
    except (aiohttp.ClientError, TimeoutError):
        # The gateway is being started again.
        return False


async def reporting(session: aiohttp.ClientSession, gateway: Address) -> dict[str, str]:
    """Return the state of each engine's reports as a gateway sees it."""
    rows = (await get(session, gateway, ENGINES_PATH))["engines"]
    return {row["name"]: row["reporting"] for row in rows}


async def are_all_well(session: aiohttp.ClientSession, backend: Backend, expected: str) -> bool:
    """Return whether all engines are up at all gateways, and report."""
    for gateway in backend.gateways:
        rows = (await get(session, gateway, ENGINES_PATH))["engines"]
        if [(row["state"], row["reporting"]) for row in rows] != [("up", expected)] * backend.engines:
            return False
        if (await get(session, gateway, "/readyz")).get("status") != "ready":
            return False
    return True


async def examine(backend: Backend, prefix: str) -> Told:
    """Put the whole contract to a backend that has no work."""
    async with client() as session:
        seen, before = _Seen(), processor_seconds()
        orders = [await _compete(session, backend, f"{prefix}-{number}", seen) for number in range(ROUNDS)]
        costs = described(before, processor_seconds())
        gateway = backend.gateways[0]
        answers = [
            await chat(session, gateway, f"{prefix}-content-{at}", 8 + at, text=f"Count to {at}.")
            for at in range(4)
        ]
        program = f"{prefix}-content-0"
        shapes = {
            "receipt": shape([answer["autellix"] for answer in answers]),
            "why": seen.why_shape,
            "ps": shape((await get(session, gateway, PROGRAMS_PATH))["programs"]),
            "ps of one": shape(await get(session, gateway, f"{PROGRAMS_PATH}/{program}")),
            "engines": seen.engines_shape,
            "readyz": shape({**await get(session, gateway, "/readyz"), "engines": None}),
        }
        return Told(
            orders=orders,
            tokens=[_tokens(answer["autellix"]) for answer in answers],
            answers=[answer["choices"][0]["message"]["content"] for answer in answers],
            shapes=shapes,
            states=frozenset(seen.states),
            policies=frozenset(seen.policies),
            is_measured=not any(answer["autellix"]["estimated"] for answer in answers),
            readiness=(await get(session, gateway, "/readyz"))["status"],
            why=seen.why,
            costs=costs,
        )


def _tokens(receipt: Mapping[str, Any]) -> tuple[int, int]:
    return receipt["prompt_tokens"], receipt["output_tokens"]


class _Seen:
    """What operators saw under load."""

    def __init__(self) -> None:
        self.states: set[str] = set()
        self.policies: set[str] = set()
        self.why = ""
        self.why_shape: object = None
        self.engines_shape: object = None


async def _compete(session: aiohttp.ClientSession, backend: Backend, prefix: str, seen: _Seen) -> Order:
    """Fill all slots with long programs, and let short ones come once some wait."""
    order, begun_s = Order(), time.monotonic()

    async def run(name: str, at: int, calls: int, tokens: int, ends_s: list[float]) -> None:
        gateway = backend.gateways[at % len(backend.gateways)]
        for number in range(calls):
            is_last = number == calls - 1
            await chat(session, gateway, name, tokens, text=f"{name}, step {number}", is_last=is_last)
        ends_s.append(time.monotonic() - begun_s)

    count = 4 * backend.engines
    tasks = [
        asyncio.create_task(run(f"{prefix}-long-{at}", at, LONG_CALLS, LONG_TOKENS, order.long_s))
        for at in range(count)
    ]
    waiting: list[tuple[Address, str]] = []

    async def waits() -> bool:
        waiting.clear()
        for gateway in backend.gateways:
            for row in (await get(session, gateway, PROGRAMS_PATH))["programs"]:
                seen.states.add(row["state"])
                if row["state"] == "waiting":
                    waiting.append((gateway, row["program_id"]))
        return bool(waiting)

    await until("programs wait", waits)
    tasks += [
        asyncio.create_task(run(f"{prefix}-short-{at}", at, SHORT_CALLS, SHORT_TOKENS, order.short_s))
        for at in range(count)
    ]
    await _look(session, backend, waits, waiting, seen)
    await asyncio.gather(*tasks)
    return order


async def _look(
    session: aiohttp.ClientSession,
    backend: Backend,
    waits: Callable[[], Awaitable[bool]],
    waiting: Sequence[tuple[Address, str]],
    seen: _Seen,
) -> None:
    """Read what operators read, until a program's wait is explained by its place."""
    shapes: list[object] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        await waits()
        for gateway, program in list(waiting):
            told = await get(session, gateway, f"{PROGRAMS_PATH}/{program}/why")
            if "calls" in told:
                shapes.append(shape(told))
            for call in told.get("calls", ()):
                if call["state"] == "waiting" and call["position"] is not None and not seen.why:
                    seen.why = call["text"]
        rows = [
            row
            for gateway in backend.gateways
            for row in (await get(session, gateway, ENGINES_PATH))["engines"]
        ]
        seen.policies |= {row["policy"] or UNKNOWN for row in rows}
        seen.engines_shape = merged([seen.engines_shape, shape(rows)])
        seen.why_shape = merged([seen.why_shape, *shapes])
        if seen.why or not waiting:
            return
        await asyncio.sleep(LOOK_PERIOD_S)


def shape(value: object) -> object:
    """Return the form of an answer: names and kinds, without values; a list's is that of all its items."""
    if isinstance(value, Mapping):
        return {str(key): shape(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [merged(map(shape, value))]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number"


def merged(shapes: Iterable[object]) -> object:
    """Return what several answers have in common; None gives way to anything."""
    result: object = None
    for each in shapes:
        if isinstance(result, dict) and isinstance(each, dict):
            result = {key: merged([result.get(key), each.get(key)]) for key in {**result, **each}}
        elif isinstance(result, list) and isinstance(each, list):
            result = [merged([*result, *each])]
        elif result in (None, NULL):
            result = each
    return result


def differences(one: object, other: object, path: str = "") -> list[str]:
    """Return where two forms differ: what either lacks, or has of another kind.

    A value that is null in one may be anything in the other: what only engines on other machines say, or only
    some moments have.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        found = [f"{path}.{key} is in one alone" for key in sorted(one.keys() ^ other.keys())]
        for key in sorted(one.keys() & other.keys()):
            found += differences(one[key], other[key], f"{path}.{key}")
        return found
    if isinstance(one, list) and isinstance(other, list):
        return differences(one[0] if one else None, other[0] if other else None, path + "[]")
    return [] if one == other or NULL in (one, other) else [f"{path}: {one} and {other}"]
