"""Between the client and a backend: a relay that passes bytes on, or answers with something else."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import ssl
import threading


class Relay:
    """Passes the connections of a listener on to a port, or answers each with `fault`."""

    def __init__(
        self, port: int, listener: socket.socket | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.fault: bytes | None = None
        self._port = port
        self._tls = tls
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The address of the listener."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def close(self) -> None:
        """Accept nothing more."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:
                connection.close()
                return
        with connection, contextlib.suppress(OSError):
            if self.fault is not None:
                connection.recv(65536)
                connection.sendall(self.fault)
                return
            with socket.create_connection(("127.0.0.1", self._port)) as backend:
                back = threading.Thread(target=self._copy, args=(backend, connection), daemon=True)
                back.start()
                self._copy(connection, backend)
                back.join()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class HttpProxy(http.server.ThreadingHTTPServer):
    """An HTTP proxy that passes each request on; it may know hosts that nobody else does."""

    daemon_threads = True

    def __init__(self, addresses: dict[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.addresses = addresses or {}
        self.passed: list[str] = []
        """The paths of the requests."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> HttpProxy:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _ProxyHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpProxy

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        address, _, path = self.path.removeprefix("http://").partition("/")
        self.server.passed.append(path)
        address = self.server.addresses.get(address, address)
        with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            connection.request(self.command, f"/{path}", body, dict(self.headers.items()))
            answer = connection.getresponse()
            content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("date", "server", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_DELETE = do_POST  # noqa: N815 - the name that the base looks up
