"""Exchanges requests with backends for the control thread: bounded ones, and a watch that stays open."""

from __future__ import annotations

import threading
import time

from autellix._faults import log_debug
from autellix._sessions.backends import PATIENCE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from autellix._sessions.backends import Account, Backend
    from autellix._sessions.connection import Answer, Connection, Request

    T = TypeVar("T")

MAX_KEPT = 32
"""Connections that are kept alive."""


class _Kept(threading.local):
    """The connections that this thread keeps alive."""

    def __init__(self) -> None:
        self.connections: dict[Backend, Connection] = {}


_kept = _Kept()


def exchange(
    account: Account,
    method: str,
    path: str,
    body: bytes | None,
    timeout_s: float = PATIENCE_S,
    proof: Mapping[str, str] | None = None,
) -> Answer | None:
    """Send one request; return status and body, or None if the backend does not answer.

    `proof` holds the headers that name a session and prove that it is ours.
    """
    return exchange_all(account, [(method, path, body, proof or {})], timeout_s)[0]


def exchange_all(
    account: Account, requests: Sequence[Request], timeout_s: float = PATIENCE_S
) -> list[Answer | None]:
    """Send requests together, so that a distant backend costs one round trip; return their answers.

    They are sent again on a new connection where a kept one has ended, so each must be harmless if repeated.
    """
    from http.client import HTTPException

    backend = account.backend
    prepared = [_prepared(account, request) for request in requests]
    answers: list[Answer] = []
    deadline_s = time.monotonic() + min(timeout_s, backend.patience_s)
    while len(answers) < len(prepared):
        connection = _take(backend)
        is_kept, count = connection is not None, len(answers)
        try:
            if connection is None:
                connection = _connect(backend, deadline_s)
            if connection.exchange(prepared[count:], answers, deadline_s):
                _keep(backend, connection)
            else:
                connection.close()
            backend.patience_s = PATIENCE_S
        except (OSError, HTTPException, ValueError) as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                backend.lose_patience()
            if not is_kept and len(answers) == count:
                log_debug("%s %s at %s: %s", prepared[count][0], prepared[count][1], backend.origin, error)
                break
    return [*answers, *[None] * (len(prepared) - len(answers))]


def close_connections() -> None:
    """Close the connections of this thread."""
    while _kept.connections:
        _kept.connections.popitem()[1].close()


def _keep(backend: Backend, connection: Connection) -> None:
    _kept.connections[backend] = connection
    while len(_kept.connections) > MAX_KEPT:
        _kept.connections.pop(next(iter(_kept.connections))).close()


def _take(backend: Backend) -> Connection | None:
    connection = _kept.connections.pop(backend, None)
    if connection is not None and connection.is_stale:
        connection.close()
        return None
    return connection


def _connect(backend: Backend, deadline_s: float) -> Connection:
    from autellix._sessions.connection import Connection

    return Connection(backend.origin, max(0.01, deadline_s - time.monotonic()), backend.uds)


def _prepared(account: Account, request: Request) -> Request:
    method, path, body, headers = request
    ours = {"Content-Type": "application/json"} if body is not None else {}
    return method, account.backend.root + path, body, {**ours, **account.headers, **headers}


class SessionWatch:
    """A request that the backend holds open; the end of this process closes it, however the process ends."""

    def __init__(self, account: Account, path: str, proof: Callable[[], dict[str, str]]) -> None:
        """Note what to ask; `proof` returns the headers that prove that the session is ours."""
        self._account = account
        self._path = path
        self._proof = proof
        self._connection: Connection | None = None
        self._is_refused = False

    def ensure_open(self) -> None:
        """Open the request unless it is open or the backend has refused it."""
        if self._is_refused or (self._connection is not None and not self._connection.is_stale):
            return
        if self._connection is not None:
            self._is_refused = (self._attempt(self._read_status) or 0) >= 400
        self.close()
        if not self._is_refused:
            self._attempt(self._open)

    def close(self) -> None:
        """Close this process's end; in a forked child the parent's end stays open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(self, step: Callable[[float], T]) -> T | None:
        """Run a step with its deadline; return None if the backend restarted or a proxy's timeout expired."""
        from http.client import HTTPException

        backend = self._account.backend
        try:
            return step(time.monotonic() + backend.patience_s)
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError):
                backend.lose_patience()
            log_debug("GET %s at %s: %s", self._path, backend.origin, error)
            self.close()
            return None

    def _open(self, deadline_s: float) -> None:
        self._connection = _connect(self._account.backend, deadline_s)
        self._connection.send(_prepared(self._account, ("GET", self._path, None, self._proof())))

    def _read_status(self, deadline_s: float) -> int | None:
        return None if self._connection is None else self._connection.read_status(deadline_s)
