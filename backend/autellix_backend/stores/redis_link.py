"""One gateway's connection to Redis, which runs scripts within a bounded time.

Scripts share one connection, and none waits for the answers of earlier ones. After any error the connection
is dropped with everything pending; the next script opens another. A flood of connections makes the rounds of
the event loop long, so there are few between a script and its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from autellix_backend.stores.base import StoreUnavailableError

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
    is_text_sent: bool = False
    """Whether Redis is sent the script itself, since it does not know the hash."""


class RedisLink:
    """Runs scripts on the table of one prefix."""

    def __init__(self, url: str, *, key_prefix: str, timeout_s: float) -> None:
        """Note the address; the first script connects, within the timeout of its answer."""
        self.url = url
        self.tag = "{" + key_prefix + "}"
        self._timeout_s = timeout_s
        self._make_connection: Callable[[], AbstractConnection] = ConnectionPool.from_url(
            url,
            # A repeated command could count twice, and the timeout is elsewhere.
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=timeout_s,
            protocol=2,
        ).make_connection
        self._pipeline: _Pipeline | None = None
        self._endings: set[asyncio.Task[None]] = set()

    async def run(self, name: str, *arguments: Argument) -> Any:
        """Run a script and return its answer.

        Raises:
            StoreUnavailableError: if it does not answer in time; the script may have run all the same.
            NotMemberError: if the script refused, because the gateway has no lease.
        """
        run = _ScriptRun(load_script(name), arguments, asyncio.get_running_loop().create_future())
        if self._pipeline is None or self._pipeline.is_over:
            self._pipeline = _Pipeline(self._make_connection(), self.tag, self._endings)
        self._pipeline.add(run)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await run.answer
        except TimeoutError:
            error = StoreUnavailableError(f"no answer within {self._timeout_s:g} s")
            self.reset(error)
            raise error from None

    def reset(self, error: StoreUnavailableError) -> None:
        """Drop the connection; pending scripts raise this error."""
        if self._pipeline is not None:
            self._pipeline.end(error)
            self._pipeline = None

    async def close(self) -> None:
        """Drop the connection and wait until it is closed."""
        self.reset(StoreUnavailableError("the store is closed"))
        await asyncio.gather(*self._endings)


class _Pipeline:
    """Scripts on their way over one connection; Redis answers in the order in which they were sent."""

    def __init__(self, connection: AbstractConnection, tag: str, endings: set[asyncio.Task[None]]) -> None:
        self._connection = connection
        self._tag = tag
        self._endings = endings
        self.is_over = False
        self._unsent: list[_ScriptRun] = []
        self._unanswered: deque[_ScriptRun] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    def add(self, run: _ScriptRun) -> None:
        """Send a script together with the others of this round of the event loop."""
        self._unsent.append(run)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())

    def end(self, error: StoreUnavailableError) -> None:
        """Close the connection; what is pending raises this error."""
        if self.is_over:
            return
        self.is_over = True
        for run in (*self._unsent, *self._unanswered):
            _fail(run, error)
        ending = asyncio.create_task(self._close())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _send(self) -> None:
        try:
            if self._reader is None:
                await self._connection.connect()  # type: ignore[no-untyped-call]
                self._reader = asyncio.create_task(self._read())
            while self._unsent:
                runs, self._unsent = self._unsent, []
                self._unanswered.extend(runs)
                commands = self._connection.pack_commands([self._command(run) for run in runs])
                await self._connection.send_packed_command(commands, check_health=False)
            self._sender = None
        except (RedisError, OSError) as error:
            self.end(_unavailable(error))

    def _command(self, run: _ScriptRun) -> tuple[Argument, ...]:
        how = ("EVAL", run.script.text) if run.is_text_sent else ("EVALSHA", run.script.sha)
        return (*how, 1, self._tag, *run.arguments)

    async def _read(self) -> None:
        try:
            while True:
                answer = await self._next_answer()
                if not self._unanswered:
                    raise ConnectionError("an answer to no script")
                self._on_answer(self._unanswered.popleft(), answer)
        except (RedisError, OSError) as error:
            self.end(_unavailable(error))

    async def _next_answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as refusal:
            return refusal

    def _on_answer(self, run: _ScriptRun, answer: Any) -> None:
        if isinstance(answer, NoScriptError) and not run.is_text_sent:
            # Redis was restarted, or its scripts were flushed; the text also loads the script.
            run.is_text_sent = True
            self.add(run)
        elif isinstance(answer, ResponseError):
            _fail(run, _translated(answer))
        elif not run.answer.done():
            run.answer.set_result(answer)

    async def _close(self) -> None:
        tasks = [task for task in (self._sender, self._reader) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(RedisError, OSError):
            await self._connection.disconnect()


def _fail(run: _ScriptRun, error: StoreUnavailableError) -> None:
    if not run.answer.done():
        run.answer.set_exception(error)


def _unavailable(error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(str(error) or type(error).__name__)


def _translated(error: Exception) -> StoreUnavailableError:
    text = str(error)
    # Other errors of a server have classes of their own; these of its state may also arise inside a script.
    if type(error) is ResponseError and not any(state in text for state in _SERVER_STATES):
        if NOT_MEMBER in text:
            return NotMemberError(text)
        if "script" in text:
            return ScriptFailedError(text)
    return StoreUnavailableError(text)
