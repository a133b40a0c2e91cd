"""Compare HTTP servers below the gateway: what each does with hard requests, and its CPU time (Linux).

    python benchmarks/servers.py [--rounds 3]                      pip install httptools granian

Each server runs the same small ASGI app in a process of its own. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

COMMON = ("--host", "127.0.0.1", "--log-level", "critical")
UVICORN = (
    *("uvicorn", "servers:app", *COMMON, "--ws", "none", "--no-access-log"),
    *("--timeout-graceful-shutdown", "5"),
)
GRANIAN = (
    *("granian", "servers:app", *COMMON, "--interface", "asgi", "--http", "1", "--no-ws"),
    *("--loop", "uvloop"),
)
SERVERS = {
    "uvicorn, httptools": (*UVICORN, "--http", "httptools"),
    "uvicorn, h11": (*UVICORN, "--http", "h11", "--h11-max-incomplete-event-size", "65536"),
    "granian": GRANIAN,
}
CLIENTS, CALLS, STREAMS, EVENTS = 64, 6_400, 640, 32
HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
POST = b"POST /post HTTP/1.1\r\nhost: a\r\n"
OFFER = POST + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
left_s = 0.0


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the path and the size of the body; stream events; note when a stream's client leaves."""
    global left_s
    if scope["type"] != "http":
        return
    path, size, is_streaming = scope["path"], 0, scope["path"].startswith("/stream")
    if path != "/unread":
        while (message := await receive()).get("more_body"):
            size += len(message["body"])
        size += len(message.get("body", b""))
    body = f"{path} {size} {left_s} end".encode()
    headers = [] if is_streaming else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if path == "/unread":
        await asyncio.sleep(2.0)
    if path == "/stream/endless":
        await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        left_s = time.monotonic()
        return
    for _ in range(EVENTS if is_streaming else 0):
        await send(
            {"type": "http.response.body", "body": b"data: " + b"x" * 200 + b"\n\n", "more_body": True}
        )
        await asyncio.sleep(0.05 if path == "/stream/slow" else 0.002)
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(command: tuple[str, ...]) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a server; yield its port and process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    folder = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", str(port)], cwd=folder, start_new_session=True
    )
    try:
        while exchange(port, LAST, wait_s=0.0) == b"refused":
            time.sleep(0.1)
        yield port, process
    finally:
        process.terminate()
        process.wait()


def exchange(port: int, *parts: bytes, wait_s: float = 0.1, ends: bool = False) -> bytes:
    """Send parts, each in a read of its own; return what comes within 2 s, or until the end."""
    received = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 2.0) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(wait_s)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                received += data
    except ConnectionRefusedError:
        return b"refused"
    except OSError as error:
        received += type(error).__name__.encode()
    return received


def upgrade(port: int) -> str:
    """Return in how many of four forms a request that offers an upgrade keeps its body and the next one."""
    length, chunks = (
        b"content-length: %d\r\n\r\n" % len(HIDDEN),
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
    )
    forms = [(OFFER + length, HIDDEN), (OFFER + CHUNKED, chunks)]
    answers = [
        exchange(port, *parts)
        for head, body in forms
        for parts in ((head + body + LAST,), (head, body + LAST))
    ]
    kept = sum(b"/post %d " % len(HIDDEN) in answer and b"/last 0" in answer for answer in answers)
    return f"{kept} of 4" + (
        ", body served as a request" if any(b"/hidden" in each for each in answers) else ""
    )


def status(answer: bytes) -> str:
    """Return the status of an answer, or what came in its place."""
    return (
        answer.split(b" ", 2)[1].decode()
        if answer.startswith(b"HTTP/1.1 ")
        else answer[:30].decode() or "closed"
    )


def unread_mib(port: int) -> str:
    """Return how much of a body the server takes whose app does not read it."""
    with socket.create_connection(("127.0.0.1", port), 2.0) as connection:
        connection.sendall(b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n")
        connection.settimeout(0.5)
        sent = 0
        try:
            while sent < 2**28:
                sent += connection.send(bytes(2**16))
        except OSError:
            pass
    return f"{sent / 2**20:.1f} MiB"


def disconnect_ms(port: int) -> str:
    """Return how soon an app that waits sees its client disconnect."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /stream/endless HTTP/1.1\r\nhost: a\r\n\r\n")
        connection.recv(100)
        time.sleep(0.2)
        closed_s = time.monotonic()
    time.sleep(0.5)
    seen_s = float(exchange(port, LAST).split()[-2])
    return f"{1000 * (seen_s - closed_s):.1f} ms" if seen_s else "never"


def graceful(port: int, process: subprocess.Popen[bytes]) -> str:
    """Return what a stream of 1.6 s gets when the server is told to end in its middle."""
    with socket.create_connection(("127.0.0.1", port), 5.0) as connection:
        connection.sendall(b"GET /stream/slow HTTP/1.1\r\nhost: a\r\n\r\n")
        received = connection.recv(100)
        os.kill(process.pid, signal.SIGTERM)
        while data := connection.recv(65536):
            received += data
    return f"{received.count(b'data: ')} of {EVENTS} events"


def cpu_s(session: int) -> float:
    """Return the CPU time of all processes of a session so far."""
    total_s = 0.0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == session:
                threads = (path / "task").glob("*/schedstat")
                total_s += sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
        except (OSError, IndexError):
            continue
    return total_s


async def load_ms(port: int, session: int, path: str, calls: int) -> float:
    """Return the server's CPU time for a call of 64 clients, ms."""
    left = iter(range(calls))

    async def work(client: aiohttp.ClientSession) -> None:
        for _ in left:
            async with client.post(f"http://127.0.0.1:{port}{path}", data=b"x" * 500) as answer:
                await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        await asyncio.gather(*(work(client) for _ in range(CLIENTS)))
        left, before_s = iter(range(calls)), cpu_s(session)
        await asyncio.gather(*(work(client) for _ in range(CLIENTS)))
    return 1000 * (cpu_s(session) - before_s) / calls


def checks(port: int, process: subprocess.Popen[bytes]) -> dict[str, str]:
    """Return what a server does with each hard request; the last one ends it."""
    get, head = b"GET /x HTTP/1.1\r\nhost: a\r\n", POST + CHUNKED
    return {
        "offers of an upgrade that keep their body": upgrade(port),
        "a client that closes its sending half gets": status(exchange(port, get + b"\r\n", ends=True)),
        "a waiting app sees its client disconnect after": disconnect_ms(port),
        "status for a head of 1 MiB": status(exchange(port, get + b"a: " + b"b" * 2**20 + b"\r\n\r\n")),
        "taken of a body that the app does not read": unread_mib(port),
        "status for a bad chunk behind the head": status(exchange(port, head, b"xyz\r\n")),
        "status for a trailer named content-length": status(
            exchange(port, head, b"1\r\nx\r\n0\r\ncontent-length: 9\r\n\r\n")
        ),
        "status for `Transfer-Encoding: gzip, chunked`": status(
            exchange(port, POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
        ),
        "a stream of 1.6 s when the server is told to end": graceful(port, process),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="of the loads, the servers in turn")
    rounds = parser.parse_args().rounds
    found: dict[str, dict[str, str]] = {}
    for name, command in SERVERS.items():
        with serving(command) as (port, process):
            found[name] = checks(port, process)
    costs: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, command in SERVERS.items():
            for load, path, calls in (("call", "/post", CALLS), ("stream of 32 events", "/stream", STREAMS)):
                with serving(command) as (port, process):
                    costs.setdefault((name, load), []).append(
                        asyncio.run(load_ms(port, process.pid, path, calls))
                    )
    for (name, load), each in costs.items():
        text = f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"
        found[name][f"CPU time for a {load}, 64 clients, ms"] = text
    print("| | " + " | ".join(SERVERS) + " |")
    print("|---" * (1 + len(SERVERS)) + "|")
    for row in found["granian"]:
        print(f"| {row} | " + " | ".join(found[name][row] for name in SERVERS) + " |")


if __name__ == "__main__":
    main()
