"""Speaks HTTP with a backend, for the control thread: one bounded exchange, or a watch that is left open."""

from __future__ import annotations

from autellix._safely import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from http.client import HTTPConnection

    from autellix._backends import Backend

EXCHANGE_TIMEOUT_S = 2.0
LARGEST_ANSWER = 65536


def exchange(
    backend: Backend, method: str, path: str, body: bytes | None, timeout_s: float = EXCHANGE_TIMEOUT_S
) -> tuple[int, bytes] | None:
    """Send one request; return status and body, or None if the backend does not answer."""
    from http.client import HTTPException

    connection = connect(backend, timeout_s)
    try:
        connection.request(method, backend.root + path, body, _headers(backend))
        response = connection.getresponse()
        return response.status, response.read(LARGEST_ANSWER)
    except (OSError, HTTPException) as error:
        note("%s %s at %s: %s", method, path, backend.origin, error)
        return None
    finally:
        connection.close()


class Watch:
    """A request that the backend leaves unanswered: the end of this process closes it, however it ends."""

    def __init__(self, backend: Backend, path: str) -> None:
        self._backend = backend
        self._path = path
        self._connection: HTTPConnection | None = None
        self._is_refused = False

    def keep(self) -> None:
        """Open the request if it is not open; never again once the backend has refused it."""
        from http.client import HTTPException
        from select import select

        if self._is_refused:
            return
        if self._connection is not None:
            if not select([self._connection.sock], [], [], 0)[0]:
                return
            self._read_answer()
        self.close()
        connection = connect(self._backend, EXCHANGE_TIMEOUT_S)
        try:
            connection.request("GET", self._backend.root + self._path, headers=_headers(self._backend))
        except (OSError, HTTPException) as error:
            note("GET %s at %s: %s", self._path, self._backend.origin, error)
            connection.close()
            return
        self._connection = connection

    def close(self) -> None:
        """Close our end; in a forked child the parent's stays open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_answer(self) -> None:
        from http.client import HTTPException

        if self._connection is None:
            return
        try:
            self._is_refused = self._connection.getresponse().status >= 400
        except (OSError, HTTPException):
            # The backend has closed it: it was restarted, or a proxy's patience was at its end.
            self._is_refused = False


def connect(backend: Backend, timeout_s: float) -> HTTPConnection:
    """Return a connection to the backend's origin, not yet open."""
    import http.client

    scheme, host, port = backend.origin
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_s)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def _headers(backend: Backend) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if backend.authorization:
        headers["Authorization"] = backend.authorization
    return headers
