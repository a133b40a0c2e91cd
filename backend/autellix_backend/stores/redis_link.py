"""One gateway's connection to Redis, which runs scripts within a bounded time.

Scripts share one connection, and none waits for the answers of earlier ones. After any error the connection
is dropped with everything pending; the next script opens another.

A call waits for each round of the event loop between a script and its answer, and a flood of connections
makes rounds long. So a script is written where it is run, and its answer is read where it is received:
redis-py's connection and pipeline, with their streams, tasks and locks, take three times as many rounds.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, cast

import hiredis

from autellix_backend.stores.base import StoreUnavailableError
from autellix_backend.stores.redis_address import RedisAddress

NOT_MEMBER = "NOTMEMBER"
UNKNOWN_SCRIPT = "NOSCRIPT"
_SERVER_STATES = (
    *("OOM", "READONLY", "MISCONF", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "BUSY"),
    *("NOAUTH", "NOPERM", UNKNOWN_SCRIPT),
)
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
    begun_s: float
    is_text_sent: bool = False
    """Whether Redis was sent the script itself, since it does not know the hash."""


class RedisLink:
    """Runs scripts on the table of one prefix."""

    def __init__(self, url: str, *, key_prefix: str, timeout_s: float) -> None:
        """Note the address; the first script connects, within the timeout of its answer."""
        self.url = url
        self.tag = "{" + key_prefix + "}"
        self._address = RedisAddress(url)
        self._timeout_s = timeout_s
        self._pipeline: _Pipeline | None = None

    async def run(self, name: str, *arguments: Argument) -> Any:
        """Run a script and return its answer.

        Raises:
            StoreUnavailableError: if it does not answer in time; the script may have run all the same.
            NotMemberError: if the script refused, because the gateway has no lease.
        """
        loop = asyncio.get_running_loop()
        run = _ScriptRun(load_script(name), arguments, loop.create_future(), loop.time())
        if self._pipeline is None or self._pipeline.is_over:
            self._pipeline = _Pipeline(self._address, self.tag, self._timeout_s)
        self._pipeline.add(run)
        return await run.answer

    def reset(self, error: StoreUnavailableError) -> None:
        """Drop the connection; pending scripts raise this error."""
        if self._pipeline is not None:
            self._pipeline.end(error)

    async def close(self) -> None:
        """Drop the connection and wait until it is closed."""
        if self._pipeline is not None:
            self._pipeline.end(StoreUnavailableError("the store is closed"))
            await self._pipeline.closed()


class _Pipeline(asyncio.Protocol):
    """Scripts on their way over one connection; Redis answers in the order in which they were sent."""

    def __init__(self, address: RedisAddress, tag: str, timeout_s: float) -> None:
        self._greeting = address.greeting
        self._tag = tag
        self._timeout_s = timeout_s
        self.is_over = False
        self._pending = deque[_ScriptRun]()
        self._greetings_left = len(self._greeting)
        """How many answers come before those to scripts."""
        self._answers = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._connecting = asyncio.create_task(self._connect(address))
        self._is_closed = asyncio.Event()

    def add(self, run: _ScriptRun) -> None:
        """Send a script, now or as soon as there is a connection.

        What Redis does not read stays in memory, for no longer than the timeout.
        """
        self._pending.append(run)
        if self._transport is not None:
            self._transport.write(self._command(run))
        if self._deadline is None:
            self._check_deadline()

    def end(self, error: StoreUnavailableError) -> None:
        """Drop the connection; what is pending raises this error."""
        if self.is_over:
            return
        self.is_over = True
        for run in self._pending:
            _fail(run, error)
        self._pending.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Wait until the connection is closed, after its end."""
        await asyncio.wait((self._connecting,))
        if self._transport is not None:
            await self._is_closed.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what has waited for the connection."""
        self._transport = cast(asyncio.Transport, transport)
        if self.is_over:
            self._transport.abort()
            return
        commands = [_packed(*command) for command in self._greeting]
        commands += [self._command(run) for run in self._pending]
        self._transport.writelines(commands)

    def data_received(self, data: bytes) -> None:
        """Give the answers to those that wait for them."""
        try:
            self._answers.feed(data)
            # An answer may end the connection.
            while not self.is_over and (answer := self._answers.gets()) is not False:
                self._on_answer(answer)
        except hiredis.ProtocolError as error:
            self.end(StoreUnavailableError(str(error)))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what is pending."""
        self._is_closed.set()
        self.end(StoreUnavailableError(str(error or "the connection was closed")))

    async def _connect(self, address: RedisAddress) -> None:
        try:
            await address.connect(self)
        except (OSError, ValueError) as error:
            self.end(StoreUnavailableError(str(error) or type(error).__name__))

    def _command(self, run: _ScriptRun) -> bytes:
        how = ("EVAL", run.script.text) if run.is_text_sent else ("EVALSHA", run.script.sha)
        return _packed(*how, 1, self._tag, *run.arguments)

    def _check_deadline(self) -> None:
        """Give up once the oldest script has waited too long; one timer serves all."""
        self._deadline = None
        if not self._pending:
            return
        loop = asyncio.get_running_loop()
        deadline_s = self._pending[0].begun_s + self._timeout_s
        if loop.time() < deadline_s:
            self._deadline = loop.call_at(deadline_s, self._check_deadline)
        else:
            self.end(StoreUnavailableError(f"no answer within {self._timeout_s:g} s"))

    def _on_answer(self, answer: Any) -> None:
        is_refusal = isinstance(answer, hiredis.ReplyError)
        if self._greetings_left:
            self._greetings_left -= 1
            if is_refusal:
                self.end(StoreUnavailableError(str(answer)))
        elif not self._pending:
            self.end(StoreUnavailableError("an answer to no script"))
        elif is_refusal:
            self._on_refusal(self._pending.popleft(), str(answer))
        else:
            run = self._pending.popleft()
            if not run.answer.done():
                run.answer.set_result(answer)

    def _on_refusal(self, run: _ScriptRun, text: str) -> None:
        if text.startswith(UNKNOWN_SCRIPT) and not run.is_text_sent:
            # Redis was restarted, or its scripts were flushed; the text also loads the script.
            run.is_text_sent = True
            self.add(run)
        else:
            _fail(run, _refusal(text))


def _packed(*words: Argument) -> bytes:
    # The library's own type takes a single word only.
    return cast(bytes, hiredis.pack_command(cast(Any, words)))


def _fail(run: _ScriptRun, error: StoreUnavailableError) -> None:
    if not run.answer.done():
        run.answer.set_exception(error)


def _refusal(text: str) -> StoreUnavailableError:
    # A server's state may also show inside a script.
    if not any(state in text for state in _SERVER_STATES):
        if NOT_MEMBER in text:
            return NotMemberError(text)
        if "script" in text:
            return ScriptFailedError(text)
    return StoreUnavailableError(text)
