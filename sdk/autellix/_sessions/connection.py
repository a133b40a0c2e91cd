"""One kept-alive connection to a backend, on which many requests may be sent before their answers are read.

Loaded with the first exchange: it imports what an `import autellix` should not pay for.
"""

from __future__ import annotations

import http.client
import io
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from autellix._environment import Origin

    Request = tuple[str, str, bytes | None, Mapping[str, str]]
    """Method, path, body and headers."""
    Answer = tuple[int, bytes]
    """Status and body."""

MAX_RESPONSE_BYTES = 65536
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


class _TimedSocket(io.RawIOBase):
    """Reads a socket until a deadline: a time limit for each read would not end an answer that drips."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.deadline_s = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._sock.settimeout(_remaining_s(self.deadline_s))
        return self._sock.recv_into(buffer)


class _SharedReader(io.BufferedReader):
    """The reader of all answers of a connection, which the end of one answer must not close."""

    def close(self) -> None:
        pass

    def makefile(self, _mode: str) -> _SharedReader:
        """Stand for the socket that `http.client` reads an answer from."""
        return self


class _UnixConnection(http.client.HTTPConnection):
    uds = ""

    def connect(self) -> None:
        import socket

        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.uds)


class Connection:
    """A connection to an origin: directly, by a unix socket, or through the proxy of the environment."""

    def __init__(self, origin: Origin, timeout_s: float, uds: str | None = None) -> None:
        """Connect.

        Raises:
            OSError: if the backend cannot be reached in time.
            http.client.HTTPException: if the proxy refuses.
        """
        scheme, host, port = origin
        connection: http.client.HTTPConnection
        make = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        proxy = None if uds is not None else proxy_of(scheme, f"{host}:{port}")
        self._target = ""
        self._headers: dict[str, str] = {"Host": _host(host, port)}
        if uds is not None:
            connection = _UnixConnection(host, port, timeout=timeout_s)
            connection.uds = uds
        elif proxy is None:
            connection = make(host, port, timeout=timeout_s)
        else:
            connection = make(proxy[0], proxy[1], timeout=timeout_s)
            if scheme == "https":
                connection.set_tunnel(host, port, proxy[2])
            else:
                self._target = f"{scheme}://{_host(host, port)}"
                self._headers.update(proxy[2])
        connection.connect()
        self._sock: socket.socket = connection.sock
        self._timed = _TimedSocket(self._sock)
        self._reader = _SharedReader(self._timed)

    @property
    def is_stale(self) -> bool:
        """Whether the other side has closed it, or has sent data without a request."""
        from select import select

        return bool(select([self._sock], [], [], 0)[0])

    def exchange(self, requests: Sequence[Request], answers: list[Answer], deadline_s: float) -> bool:
        """Send requests together, and add their answers in order; return whether more may follow.

        Raises:
            OSError: if it breaks or the deadline passes; `answers` holds the answers until then.
            http.client.HTTPException: if an answer is not HTTP.
        """
        self._timed.deadline_s = deadline_s
        self._sock.settimeout(_remaining_s(deadline_s))
        self._sock.sendall(b"".join(map(self._encode, requests)))
        for method, *_ in requests:
            response = http.client.HTTPResponse(self._reader, method=method)  # type: ignore[arg-type]
            response.begin()
            body = response.read(MAX_RESPONSE_BYTES)
            answers.append((response.status, body))
            if response.will_close or not response.isclosed():
                return False
        return True

    def _encode(self, request: Request) -> bytes:
        method, path, body, headers = request
        fields = {**self._headers, **headers}
        if body is not None:
            fields["Content-Length"] = str(len(body))
        lines = [f"{method} {self._target}{path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

    def send(self, request: Request) -> None:
        """Send a request whose answer is not awaited.

        Raises:
            OSError: if the connection breaks.
        """
        self._sock.sendall(self._encode(request))

    def read_status(self, deadline_s: float) -> int:
        """Return the status of an answer to `send`.

        Raises:
            OSError: if the connection breaks or the deadline passes.
            http.client.HTTPException: if the answer is not HTTP.
        """
        self._timed.deadline_s = deadline_s
        response = http.client.HTTPResponse(self._reader, method="GET")  # type: ignore[arg-type]
        response.begin()
        return response.status

    def close(self) -> None:
        self._sock.close()


def proxy_of(scheme: str, netloc: str) -> tuple[str, int, dict[str, str]] | None:
    """Return host, port and headers of the proxy that the environment names for a host, if any."""
    if not any(os.environ.get(name) or os.environ.get(name.upper()) for name in PROXY_VARIABLES):
        return None
    from base64 import b64encode
    from urllib.parse import unquote, urlsplit
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or proxy_bypass(netloc):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # A SOCKS proxy, which the standard library does not speak.
        return None
    headers = {}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Proxy-Authorization"] = "Basic " + b64encode(secret).decode()
    return parts.hostname, parts.port or 80, headers


def _host(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _remaining_s(deadline_s: float) -> float:
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError("the time for an exchange is over")
    return remaining_s
