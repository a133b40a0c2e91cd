"""Exchanges with backends: kept connections, total deadlines, proxies."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.sdk.in_process import HTTPX
from tests.sdk.sessions.relay import Relay
from tests.waiting import wait_until

import autellix
from autellix._sessions.backends import NO_KEY, Account, Backend
from autellix._sessions.connection import proxy_of
from autellix._sessions.exchange import SessionWatch, close_connections, exchange, exchange_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.sdk.conftest import Recording

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """A server that lets a function answer each connection."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.connections = 0
        self._serve = serve
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._serve(connection)

    def account(self, host: str = "127.0.0.1") -> Account:
        return Backend(("http", host, self.port), "", is_configured=True).account(NO_KEY)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], None]], Server]]:
    servers = []

    def start(function: Callable[[socket.socket], None]) -> Server:
        servers.append(Server(function))
        return servers[-1]

    yield start
    close_connections()
    for server in servers:
        server.socket.close()


def answer_all(connection: socket.socket) -> None:
    while data := connection.recv(65536):
        connection.sendall(OK * data.count(b"HTTP/1.1\r\n"))


def test_connection_is_kept(serve: Any) -> None:
    server = serve(answer_all)
    account = server.account()
    for _ in range(5):
        assert exchange(account, "POST", "/x", b"{}") == (200, b"{}")
    assert server.connections == 1


def test_many_requests_take_one_round_trip(serve: Any) -> None:
    """The answers come only after all requests have arrived."""

    def answer_late(connection: socket.socket) -> None:
        data = b""
        while data.count(b"HTTP/1.1\r\n") < 50:
            data += connection.recv(65536)
        connection.sendall(OK * 50)
        connection.recv(1)

    server = serve(answer_late)
    answers = exchange_all(server.account(), [("DELETE", f"/{number}", None, {}) for number in range(50)])
    assert answers == [(200, b"{}")] * 50


def test_server_that_closes_each_connection_gets_every_request(serve: Any) -> None:
    def answer_one(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))

    server = serve(answer_one)
    answers = exchange_all(server.account(), [("DELETE", f"/{number}", None, {}) for number in range(3)])
    assert answers == [(200, b"{}")] * 3
    assert server.connections == 3


def test_kept_connection_that_has_ended_is_replaced(serve: Any) -> None:
    def answer_once_and_leave(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(OK)

    account = serve(answer_once_and_leave).account()
    assert [exchange(account, "GET", "/", None) for _ in range(3)] == [(200, b"{}")] * 3


def test_answer_that_drips_is_given_up_in_time(serve: Any) -> None:
    """The limit is for the whole exchange: each byte comes well within it."""

    def drip(connection: socket.socket) -> None:
        connection.recv(65536)
        for byte in OK * 50:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    account = serve(drip).account()
    started_s = time.monotonic()
    assert exchange(account, "GET", "/", None, timeout_s=0.3) is None
    assert time.monotonic() - started_s < 1.5


def test_proxy_of_the_environment_is_used(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def proxy(connection: socket.socket) -> None:
        seen.append(connection.recv(65536))
        connection.sendall(OK)

    server = serve(proxy)
    monkeypatch.setenv("http_proxy", f"http://user:pass@127.0.0.1:{server.port}")
    monkeypatch.setenv("no_proxy", "")
    account = Backend(("http", "gateway.test", 8000), "/root", is_configured=True).account(NO_KEY)
    assert exchange(account, "GET", "/x", None) == (200, b"{}")
    first, *headers = seen[0].decode().split("\r\n")
    assert first == "GET http://gateway.test:8000/root/x HTTP/1.1"
    assert "Proxy-Authorization: Basic dXNlcjpwYXNz" in headers


def test_hosts_without_proxy_are_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost,.internal")
    assert proxy_of("http", "gateway.test:80") == ("proxy", 3128, {})
    assert proxy_of("http", "localhost:80") is None
    assert proxy_of("http", "gateway.internal:80") is None
    monkeypatch.setenv("http_proxy", "socks5://proxy:1080")
    assert proxy_of("http", "gateway.test:80") is None


@pytest.mark.parametrize("is_configured", [True, False])
def test_session_behind_a_unix_socket(
    sdk: None, backend: Recording, tmp_path: Path, is_configured: bool
) -> None:
    """Whatever the address says, control traffic takes the way of the calls."""
    path = str(tmp_path / "gateway.sock")
    url = "http://gateway.example/v1"
    if is_configured:
        autellix.configure(url)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    relay = Relay(backend.port, listener)
    transport = HTTPX.HTTPTransport(uds=path)
    with openai.OpenAI(
        base_url=url, api_key="key", max_retries=0, http_client=HTTPX.Client(transport=transport)
    ) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    backend.wait_for("POST", "/sessions")
    assert backend.calls[0]["x-autellix-program-id"] == autellix.current().program_id
    autellix.uninstrument()
    backend.wait_for("DELETE", "/sessions/")
    relay.close()


def test_a_refused_watch_is_not_opened_again(
    serve: Callable[[Callable[[socket.socket], None]], Server],
) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    server = serve(refuse)
    watch = SessionWatch(server.account(), "/watch", dict)
    watch.ensure_open()
    # The answer makes the connection stale: no backend answers a watch that it holds open.
    wait_until(lambda: watch._connection is not None and watch._connection.is_stale)
    for _ in range(2):
        watch.ensure_open()

    assert watch._connection is None
    assert server.connections == 1
