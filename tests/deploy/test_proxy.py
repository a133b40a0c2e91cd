"""The configurations of proxies: accepted by the programs, and what a gateway behind them gets to see."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.chart import DEPLOY, NAMESPACE, render, the

from autellix_backend.identity.aliases import ALIASES
from autellix_wire.paths import PROGRAMS_PATH, SESSIONS_PATH

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
UPGRADE = ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__")
CLAIMS = ("x-forwarded-for: 127.0.0.9", "forwarded: for=127.0.0.9", "x-real-ip: 127.0.0.9")
CHUNKS = b"".join(b"1\r\n%d\r\n" % digit for digit in range(8)) + b"0\r\n\r\n"
MARK = b"x-autellix-version: 0"
ANSWER = b"HTTP/1.1 200 OK\r\n" + MARK + b"\r\ntransfer-encoding: chunked\r\n\r\n7\r\ndata: 1\r\n"
NAMES = {alias.header_key: f"id-{number}" for number, alias in enumerate(ALIASES) if alias.header}
"""The headers by which clients name programs."""


@pytest.fixture(params=["nginx", "envoy"])
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import redteam_proxy

    @asynccontextmanager
    async def running(url: str, folder: Path) -> AsyncIterator[str]:
        process = redteam_proxy.running_proxy(request.param, url, folder)
        # The gateway of the test answers a proxy's health check meanwhile.
        yield await asyncio.to_thread(process.__enter__)
        await asyncio.to_thread(process.__exit__, None, None, None)

    return running


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A gateway that keeps the requests it gets and begins an answer that has no end."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if not request.startswith(b"POST"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        else:
            requests.append(request + await reader.readexactly(8))
            writer.write(ANSWER)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    server.close()


async def ask(url: str, request: bytes) -> tuple[int, bytes]:
    """Return the status and the body of an answer, or all until its first event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            received = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", received)
            if length:
                body = await reader.readexactly(int(length[1]))
            else:
                body = received + await reader.readuntil(b"data: 1")
        return int(received.split(b" ")[1]), body
    finally:
        writer.close()


def head(*lines: str) -> bytes:
    return "\r\n".join(
        ["POST /v1/chat/completions HTTP/1.1", "host: agents.example", *lines, "", ""]
    ).encode()


async def test_a_gateway_gets_whole_requests_of_known_clients(
    proxy: Any, gateway: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    url, requests = gateway
    names = [f"{header}: {value}" for header, value in NAMES.items()]
    lines = (*CLAIMS, *UPGRADE, *names, "transfer-encoding: chunked")
    async with proxy(url, tmp_path) as edge:
        # The first event comes while the answer goes on.
        status, answer = await ask(edge, head(*lines) + CHUNKS)
    assert (status, MARK in answer.lower()) == (200, True)
    [request] = requests
    named = dict(line.lower().split(b": ", 1) for line in request.split(b"\r\n")[1:] if b": " in line)
    assert request.endswith(b"01234567")
    assert named[b"content-length"] == b"8"
    assert named[b"x-forwarded-for"] == b"127.0.0.1"
    assert {header: named.get(header.encode(), b"").decode() for header in NAMES} == NAMES
    assert named[b"host"] == b"agents.example"
    assert not named.keys() & {b"upgrade", b"http2-settings", b"transfer-encoding", b"forwarded"}
    assert b"127.0.0.9" not in request


async def test_a_head_that_is_too_large_gets_an_error_that_clients_read(
    proxy: Any, gateway: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    url, requests = gateway
    async with proxy(url, tmp_path) as edge:
        answer = await ask(edge, head("content-length: 8", "x: " + "a" * 200_000))
    assert read_error(answer) == (431, "invalid_request_error", "proxy_431")
    assert requests == []


async def test_a_gateway_that_does_not_answer_is_an_error_that_clients_read(
    proxy: Any, tmp_path: Path
) -> None:
    async with proxy("http://127.0.0.1:9", tmp_path) as edge:
        status, kind, _ = read_error(await ask(edge, head("content-length: 2") + b"{}"))
    # nginx and Envoy differ.
    assert status in {502, 503}
    assert kind == "api_error"


def read_error(answer: tuple[int, bytes]) -> tuple[int, str, str]:
    """Return an answer's status, and the type and code of its error, in the form of both dialects."""
    shown = json.loads(answer[1])
    assert shown["type"] == "error" and shown["error"]["message"]
    return answer[0], shown["error"]["type"], shown["error"]["code"]


@pytest.mark.parametrize("folder", ["proxy", "compose"])
def test_nginx_accepts_the_files(tmp_path: Path, folder: str) -> None:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=agents.example"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    for source in (DEPLOY / "proxy" / "nginx.conf", *(DEPLOY / folder).glob("*.conf")):
        text = source.read_text().replace("/etc/ssl/autellix", str(tmp_path))
        # Debian's nginx is older than these.
        text = text.replace("resolver 127.0.0.11 valid=5s;", "").replace(
            "gateway:8000 resolve", "127.0.0.1:8000"
        )
        (tmp_path / source.name).write_text(text)
    command = ["nginx", "-t", "-p", f"{tmp_path}/", "-c", "nginx.conf", "-g", f"pid {tmp_path}/pid;"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "[warn]" in done.stderr) == (0, False), done.stderr


def test_envoy_ai_gateway_routes_to_the_charts_gateway() -> None:
    objects = list(yaml.safe_load_all((DEPLOY / "proxy" / "envoy-ai-gateway.yaml").read_text()))
    route, served, backend, paths = objects
    assert {each["metadata"]["namespace"] for each in objects} == {NAMESPACE}
    service = the(render(), "Service", "gateway")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    [endpoint] = backend["spec"]["endpoints"]
    assert endpoint["fqdn"] == {"hostname": f"{name}.{NAMESPACE}.svc.cluster.local", "port": port}
    [rule], [own] = route["spec"]["rules"], paths["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": served["metadata"]["name"]}]
    assert served["spec"]["backendRef"]["name"] == backend["metadata"]["name"]
    assert own["backendRefs"] == [{"name": name, "port": port}]
    assert [match["path"]["value"] for match in own["matches"]] == [SESSIONS_PATH, PROGRAMS_PATH]
