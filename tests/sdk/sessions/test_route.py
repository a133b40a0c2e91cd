"""The sessions API is asked by the way that the calls take, and by no other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.sdk.in_process import ANSWER, HTTPX, Network
from tests.sdk.sessions.relay import HttpProxy, Relay
from tests.waiting import PATIENCE_S, wait_until

import autellix
from autellix._instrument import calls
from autellix._sessions.keeper import keeper
from autellix._sessions.route import route_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.sdk.conftest import Recording

MESSAGES: Any = [{"role": "user", "content": "x"}]
SECRET = "sk-secret"


def ask(url: str, http_client: Any, program: str = "p") -> None:
    """Make a call of a program that ends then, with a client that closes after it."""
    with (
        openai.OpenAI(base_url=url, api_key=SECRET, max_retries=0, http_client=http_client) as client,
        autellix.program(id=program),
    ):
        client.chat.completions.create(model="m", messages=MESSAGES)


async def ask_async(url: str, http_client: Any) -> None:
    async with openai.AsyncOpenAI(
        base_url=url, api_key=SECRET, max_retries=0, http_client=http_client
    ) as client:
        with autellix.program(id="p"):
            await client.chat.completions.create(model="m", messages=MESSAGES)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of this machine that no public authority has signed, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    subprocess.run(
        [openssl, "req", "-x509", "-nodes", "-days", "2", *kind, *names, *files],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture
def private(backend: Recording, certificates: Path) -> Iterator[str]:
    """The address of a backend behind TLS; it asks its clients for the certificate too."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "cert.pem"))
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    relay = Relay(backend.port, tls=context)
    yield relay.url.replace("http:", "https:")
    relay.close()


@pytest.fixture
def trusting(certificates: Path) -> ssl.SSLContext:
    """What a client of that backend needs."""
    context = ssl.create_default_context(cafile=str(certificates / "cert.pem"))
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    return context


@pytest.mark.parametrize("is_async", [False, True])
def test_private_authority_and_client_certificate(
    sdk: None, backend: Recording, private: str, trusting: ssl.SSLContext, is_async: bool
) -> None:
    autellix.configure(private)
    if is_async:
        asyncio.run(ask_async(private, HTTPX.AsyncClient(verify=trusting)))
    else:
        ask(private, HTTPX.Client(verify=trusting))
    backend.wait_for("POST", "/sessions")
    backend.wait_for("DELETE", "/programs/p")
    assert backend.credentials == [f"Bearer {SECRET}"]


def test_first_failure_of_tls_is_mentioned(
    sdk: None,
    private: str,
    trusting: ssl.SSLContext,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def distrusting(client: Any, url: Any) -> Any:
        route: Any = route_of(client, url)
        route._arguments["ssl_context"] = ssl.create_default_context()
        return route

    monkeypatch.setattr(calls, "route_of", distrusting)
    autellix.configure(private)
    for number in range(2):
        ask(private, HTTPX.Client(verify=trusting), f"p{number}")
    (upkeep,) = keeper._upkeeps.values()
    wait_until(lambda: upkeep._has_warned and upkeep._thread._inbox.empty())
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "CERTIFICATE_VERIFY_FAILED" in warning.getMessage()


@pytest.mark.parametrize("is_configured", [True, False])
def test_unix_socket(sdk: None, backend: Recording, tmp_path: Path, is_configured: bool) -> None:
    path = str(tmp_path / "gateway.sock")
    url = "http://gateway.example/v1"
    if is_configured:
        autellix.configure(url)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    relay = Relay(backend.port, listener)
    for program in ("first", "second"):
        ask(url, HTTPX.Client(transport=HTTPX.HTTPTransport(uds=path)), program)
    backend.wait_for("POST", "/sessions")
    backend.wait_for("DELETE", "/programs/second")
    assert [call.get("x-autellix-program-id") for call in backend.calls] == [
        "first" if is_configured else None,
        "second",
    ]
    relay.close()


def test_proxy_of_the_client(sdk: None, backend: Recording) -> None:
    """Only the proxy knows the host."""
    with HttpProxy({"gateway.internal": f"127.0.0.1:{backend.port}"}) as proxy:
        autellix.configure("http://gateway.internal/v1")
        ask("http://gateway.internal/v1", HTTPX.Client(proxy=proxy.url))
        backend.wait_for("POST", "/sessions")
        backend.wait_for("DELETE", "/programs/p")
        autellix.uninstrument()
        backend.wait_for("DELETE", "/sessions/")
    assert backend.calls[0]["x-autellix-program-id"] == "p"


def _accept(server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


@pytest.mark.parametrize("kind", ["mock", "asgi", "subclass", "replaced method"])
def test_nothing_goes_where_the_calls_do_not(
    sdk: None, backend: Recording, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A transport of a test answers like a backend: no connection is made, with a key or without."""
    autellix.configure(backend.url)

    def answer(*_: object) -> Any:
        return HTTPX.Response(200, json=ANSWER, headers={"X-Autellix-Version": "1"})

    class Subclass(HTTPX.HTTPTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            return answer()

    if kind == "asgi":
        asyncio.run(ask_async(backend.url, HTTPX.AsyncClient(transport=HTTPX.ASGITransport(app=_app))))
    else:
        if kind == "replaced method":
            monkeypatch.setattr(HTTPX.HTTPTransport, "handle_request", answer)
        transports = {"mock": HTTPX.MockTransport(answer), "subclass": Subclass()}
        ask(backend.url, HTTPX.Client(transport=transports.get(kind)))
    (registration,) = keeper.process_session.registrations.values()
    assert registration.account.backend.has_answered
    assert registration.account.route is None
    assert keeper._upkeeps == {}
    assert backend.control == []


async def _app(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"x-autellix-version", b"1"), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"choices": []}'})


def test_nothing_goes_to_a_server_that_has_not_answered_as_a_backend(
    sdk: None, make_backend: Callable[..., Recording]
) -> None:
    """Not even to a configured one: a wrong address learns no more than the calls tell."""
    foreign = make_backend(is_autellix=False)
    autellix.configure(foreign.url)
    ask(foreign.url, None)
    assert foreign.control == []
    assert not any(thread.name == "autellix-control" for thread in threading.enumerate())


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_ways_of_both_packages(package: str) -> None:
    module: Any = pytest.importorskip(package)
    context = ssl.create_default_context()
    for client in (
        module.Client(verify=context, proxy="http://user:pass@proxy:3128", trust_env=False),
        module.AsyncClient(verify=context, proxy="http://user:pass@proxy:3128", trust_env=False),
    ):
        route = route_of(client, module.URL("http://gateway/v1"))
        assert route is not None
        assert route._arguments["ssl_context"] is context
        assert (b"Proxy-Authorization", b"Basic dXNlcjpwYXNz") in _headers_of_proxy(route._arguments)
        route._make(**route._arguments).close()


def _headers_of_proxy(arguments: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = arguments["proxy_headers"]
    return found


def test_answer_without_end_is_given_up(sdk: None) -> None:
    def pour(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n")
            while True:
                connection.sendall(b"x" * 4096)

    with socket.create_server(("127.0.0.1", 0)) as server, HTTPX.Client() as client:
        threading.Thread(target=_accept, args=(server, pour), daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        route = route_of(client, HTTPX.URL(url))
        assert route is not None
        with pytest.raises(TimeoutError):
            route.request("GET", url, {}, None, PATIENCE_S)
        route.close()


def test_discovery_needs_no_real_server(sdk: None) -> None:
    """And no connection: the mark of an answer in the process is enough."""
    network = Network("http://localhost:9/v1", headers={"X-Autellix-Version": "1"})
    for _ in range(2):
        network.client.chat.completions.create(model="m", messages=MESSAGES)
    assert network.seen == [False, True]
