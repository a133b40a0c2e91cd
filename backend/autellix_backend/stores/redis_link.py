"""One gateway's connection to Redis, which runs scripts within a bounded time.

Pending scripts are sent as one pipeline over one connection, so that many concurrent calls need few packets.
After any error the connection is dropped with everything pending; the next script opens another.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from autellix_backend.stores.base import StoreUnavailableError

MAX_PIPELINE = 256
NOT_MEMBER = "NOTMEMBER"
_SERVER_STATES = ("OOM", "READONLY", "MISCONF", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "BUSY")
OPEN_SCRIPTS = ("join", "leave", "time")
"""Scripts that run without a lease."""

Argument = str | bytes | int | float


class NotMemberError(StoreUnavailableError):
    """The gateway is not in the table: its lease ended, or the table was lost."""


class ScriptFailedError(StoreUnavailableError):
    """A script failed on its arguments; the table itself is sound."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script with its hash in Redis."""

    text: str
    sha: str


@cache
def load_script(name: str) -> Script:
    """Read a script of this package, after the common parts."""
    folder = resources.files("autellix_backend.stores") / "scripts"
    parts = ("common", name) if name in OPEN_SCRIPTS else ("common", "member", name)
    text = "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(slots=True, eq=False)
class _ScriptRun:
    script: Script
    arguments: tuple[Argument, ...]
    answer: asyncio.Future[Any]


class RedisLink:
    """Runs scripts on the table of one prefix."""

    def __init__(self, url: str, *, key_prefix: str, timeout_s: float) -> None:
        """Note the address; the first script connects, within the timeout of its answer."""
        self.url = url
        self.tag = "{" + key_prefix + "}"
        self._timeout_s = timeout_s
        self._waiting: deque[_ScriptRun] = deque()
        self._client: Redis | None = None
        self._worker: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()

    async def run(self, name: str, *arguments: Argument) -> Any:
        """Run a script and return its answer.

        Raises:
            StoreUnavailableError: if it does not answer in time; the script may have run all the same.
            NotMemberError: if the script refused, because the gateway has no lease.
        """
        request = _ScriptRun(load_script(name), arguments, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        try:
            async with asyncio.timeout(self._timeout_s):
                return await request.answer
        except TimeoutError:
            error = StoreUnavailableError(f"no answer within {self._timeout_s:g} s")
            self.reset(error)
            raise error from None

    def reset(self, error: StoreUnavailableError) -> None:
        """Drop the connection; pending scripts raise this error."""
        waiting, self._waiting = self._waiting, deque()
        worker, self._worker = self._worker, None
        client, self._client = self._client, None
        for request in waiting:
            _fail(request, error)
        if worker is not None and worker is not asyncio.current_task():
            worker.cancel()
        if client is not None:
            ending = asyncio.create_task(_close(client, worker))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """Drop the connection and wait until it is closed."""
        self.reset(StoreUnavailableError("the store is closed"))
        await asyncio.gather(*self._endings)

    async def _work(self) -> None:
        batch: list[_ScriptRun] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_PIPELINE, len(self._waiting)))]
                await self._exchange(batch)
            self._worker = None
        except asyncio.CancelledError:
            for request in batch:
                _fail(request, StoreUnavailableError("the connection was given up"))
            raise
        except (RedisError, OSError) as cause:
            error = StoreUnavailableError(str(cause) or type(cause).__name__)
            for request in batch:
                _fail(request, error)
            self.reset(error)

    async def _exchange(self, batch: Sequence[_ScriptRun]) -> None:
        client = self._client = self._client or self._connect()
        answers = await self._execute(client, [("EVALSHA", one.script.sha, one) for one in batch])
        unknown = [
            one for one, answer in zip(batch, answers, strict=True) if isinstance(answer, NoScriptError)
        ]
        if unknown:
            # Redis was restarted, or its scripts were flushed; this also loads them.
            loaded = iter(await self._execute(client, [("EVAL", one.script.text, one) for one in unknown]))
            answers = [next(loaded) if isinstance(answer, NoScriptError) else answer for answer in answers]
        for request, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                _fail(request, _translated(answer))
            elif not request.answer.done():
                request.answer.set_result(answer)

    async def _execute(self, client: Redis, commands: Sequence[tuple[str, str, _ScriptRun]]) -> list[Any]:
        async with client.pipeline(transaction=False) as pipeline:
            for command, script, request in commands:
                pipeline.execute_command(command, script, 1, self.tag, *request.arguments)
            return await cast(Awaitable[list[Any]], pipeline.execute(raise_on_error=False))

    def _connect(self) -> Redis:
        return Redis.from_url(
            self.url,
            max_connections=1,
            # A repeated command could count twice, and the timeout is elsewhere.
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=self._timeout_s,
            protocol=2,
        )


async def _close(client: Redis, worker: asyncio.Task[None] | None) -> None:
    if worker is not None:
        await asyncio.wait((worker,))
    try:
        await client.aclose()
        await client.connection_pool.disconnect()
    except (RedisError, OSError):
        # It is closed already.
        return


def _fail(request: _ScriptRun, error: StoreUnavailableError) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)


def _translated(error: Exception) -> StoreUnavailableError:
    text = str(error)
    # Other errors of a server have classes of their own; these of its state may also arise inside a script.
    if type(error) is ResponseError and not any(state in text for state in _SERVER_STATES):
        if NOT_MEMBER in text:
            return NotMemberError(text)
        if "script" in text:
            return ScriptFailedError(text)
    return StoreUnavailableError(text)
