"""Sends the control thread's HTTP requests to a backend: one bounded exchange, or a watch that stays open."""

from __future__ import annotations

from autellix._faults import log_debug

TYPE_CHECKING = False
if TYPE_CHECKING:
    from http.client import HTTPConnection

    from autellix._sessions.backends import Backend

TIMEOUT_S = 2.0
MAX_RESPONSE_BYTES = 65536


def exchange(
    backend: Backend, method: str, path: str, body: bytes | None, timeout_s: float = TIMEOUT_S
) -> tuple[int, bytes] | None:
    """Send one request; return status and body, or None if the backend does not answer."""
    from http.client import HTTPException

    connection = connect(backend, timeout_s)
    try:
        connection.request(method, backend.root + path, body, _headers(backend))
        response = connection.getresponse()
        return response.status, response.read(MAX_RESPONSE_BYTES)
    except (OSError, HTTPException) as error:
        log_debug("%s %s at %s: %s", method, path, backend.origin, error)
        return None
    finally:
        connection.close()


class SessionWatch:
    """A request that the backend holds open; the end of this process closes it, however the process ends."""

    def __init__(self, backend: Backend, path: str) -> None:
        self._backend = backend
        self._path = path
        self._connection: HTTPConnection | None = None
        self._is_refused = False

    def ensure_open(self) -> None:
        """Open the request unless it is open or the backend has refused it."""
        from http.client import HTTPException
        from select import select

        if self._is_refused:
            return
        if self._connection is not None:
            if not select([self._connection.sock], [], [], 0)[0]:
                return
            self._read_response(self._connection)
        self.close()
        connection = connect(self._backend, TIMEOUT_S)
        try:
            connection.request("GET", self._backend.root + self._path, headers=_headers(self._backend))
        except (OSError, HTTPException) as error:
            log_debug("GET %s at %s: %s", self._path, self._backend.origin, error)
            connection.close()
            return
        self._connection = connection

    def close(self) -> None:
        """Close this process's end; in a forked child the parent's end stays open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_response(self, connection: HTTPConnection) -> None:
        from http.client import HTTPException

        try:
            self._is_refused = connection.getresponse().status >= 400
        except (OSError, HTTPException):
            # The backend restarted, or a proxy's timeout expired.
            self._is_refused = False


def connect(backend: Backend, timeout_s: float) -> HTTPConnection:
    """Return an unopened connection to the backend's origin."""
    import http.client

    scheme, host, port = backend.origin
    make = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    return make(host, port, timeout=timeout_s)


def _headers(backend: Backend) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if backend.authorization:
        headers["Authorization"] = backend.authorization
    return headers
