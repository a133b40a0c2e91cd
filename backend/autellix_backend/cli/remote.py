"""Requests to a running gateway, for commands that show or change its state."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from autellix_backend.environment import client_environment
from autellix_backend.errors import CommandError
from autellix_wire.paths import API_PREFIX

TIMEOUT_S = 10.0
NO_SUCH_ROUTE = {404: "Not Found", 405: "Method Not Allowed"}
"""Ends of a gateway's answer where it has no such path, or not with this method."""
PAGE_PROGRAMS = 500
"""Programs per answer; a gateway allows 1,000."""


class RemoteError(CommandError):
    """A gateway does not answer, or answers with an error."""

    exit_code = 1

    def __init__(self, message: str, status: int | None = None) -> None:
        """Set the message, and the status of the answer if there was one."""
        super().__init__(message)
        self.status = status


class RemoteGateway:
    """A running gateway."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        # No proxy: a gateway is on the operator's own network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> RemoteGateway:
        """Return the gateway chosen by the options of `add_remote_options`."""
        return cls(args.url, args.api_key)

    def get(self, path: str) -> dict[str, Any]:
        """Get an endpoint below /autellix/v1; raises as ask() does."""
        return self.ask("GET", path)

    def programs(self, limit: int, state: str | None = None) -> dict[str, Any]:
        """Return the first programs, from as many answers as needed; raises as ask() does."""
        rows: list[dict[str, Any]] = []
        asked = {} if state is None else {"state": state}
        while True:
            query = urlencode({"limit": min(limit - len(rows), PAGE_PROGRAMS), **asked})
            answer = self.get(f"/programs?{query}")
            rows += answer["programs"]
            if answer["next"] is None or len(rows) >= limit:
                return {**answer, "programs": rows}
            asked["after"] = answer["next"]

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Send a request to an endpoint below /autellix/v1 and return the JSON answer.

        Raises:
            RemoteError: if the gateway does not answer, or answers with an error.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(
                self.url + API_PREFIX + path, data=data, headers=self._headers, method=method
            )
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                message = _message(error)
                if error.code in NO_SUCH_ROUTE and message.endswith(NO_SUCH_ROUTE[error.code]):
                    message += "; expected a gateway with a console, served without --no-console"
                raise RemoteError(f"{self.url} answers {error.code}: {message}", error.code) from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise RemoteError(
                f"no gateway answers at {self.url} ({reason}); expected a running `autellix serve`, "
                "or its address in --url or AUTELLIX_BASE_URL"
            ) from error
        if not isinstance(answer, dict):
            raise RemoteError(
                f"{self.url} is not an Autellix gateway: its answer to {path} is not a JSON object"
            )
        return answer


def add_remote_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--url`, `--api-key` and `--json`."""
    url, api_key = client_environment()
    parser.add_argument(
        "--url",
        default=url,
        help=f"address of the gateway, by default the first of AUTELLIX_BASE_URL (now {url})",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", default=api_key, help="key of a tenant, by default AUTELLIX_API_KEY"
    )
    parser.add_argument("--json", action="store_true", help="print the gateway's JSON answer")


def print_json(answer: object) -> None:
    """Print an answer as JSON."""
    print(json.dumps(answer, indent=2))


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
