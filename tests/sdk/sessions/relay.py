"""Between the client and a backend: a relay that passes bytes on, or answers with something else."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Passes the connections of a listener on to a port, or answers each with `fault`."""

    def __init__(self, port: int, listener: socket.socket | None = None) -> None:
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.fault: bytes | None = None
        self._port = port
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
