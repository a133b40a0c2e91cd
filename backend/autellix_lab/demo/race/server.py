"""Serves the page of a watched demo on loopback: its files, and the state of the race."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from autellix_backend.page.assets import Asset, assets, read_assets
from autellix_backend.page.headers import PAGE_HEADERS
from autellix_lab.demo.race.race import Race

HOST = "127.0.0.1"
PAGE = "race.html"
STATE_PATH = "/race"
FILES_PATH = "/page/"


class _RaceServer(ThreadingHTTPServer):
    """Threads of connections that a browser keeps open do not outlive the demo."""

    daemon_threads = True

    def __init__(self, race: Race) -> None:
        super().__init__((HOST, 0), _RaceHandler)
        self.race = race
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self.files = {**assets(), **read_assets(__package__)}

    def handle_error(self, _request: object, _client_address: object) -> None:
        """Ignore a browser that left, so that the demo's output stays clean."""


class _RaceHandler(BaseHTTPRequestHandler):
    server: _RaceServer

    def do_GET(self) -> None:
        """Answer with a file of the page, or with the race's state."""
        parts = urlsplit(self.path)
        if self.headers.get("host") not in self.server.hosts:
            # The name of another site that leads here: its pages may not read the answer.
            self._answer(HTTPStatus.FORBIDDEN, Asset(b"", "text/plain"))
        elif parts.path == STATE_PATH:
            content = json.dumps(_state(self.server.race, parts.query)).encode()
            self._answer(HTTPStatus.OK, Asset(content, "application/json"))
        else:
            name = PAGE if parts.path == "/" else parts.path.removeprefix(FILES_PATH)
            found = self.server.files.get(name)
            self._answer(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND, found or Asset(b"", "text/plain"))

    def _answer(self, status: HTTPStatus, asset: Asset) -> None:
        self.send_response(status)
        self.send_header("content-type", asset.media_type)
        self.send_header("content-length", str(len(asset.content)))
        for name, value in PAGE_HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(asset.content)

    def log_message(self, *_: object) -> None:
        """Keep the demo's output free of requests."""


def _state(race: Race, query: str) -> dict[str, object]:
    numbers = {name: int(text) for name, text in parse_qsl(query) if text.isascii() and text.isdecimal()}
    return race.state(numbers.pop("heat", 0), numbers)


@contextlib.contextmanager
def served(race: Race) -> Iterator[str]:
    """Serve a race's page while in the context, and return its address."""
    with _RaceServer(race) as server:
        thread = threading.Thread(target=server.serve_forever, name="race-page", daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
