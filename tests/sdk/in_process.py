"""OpenAI clients whose requests a function of the test answers, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import openai

_MODULE: Any = vars(openai)["_base_client"]
HTTPX: Any = vars(_MODULE).get("httpx2") or _MODULE.httpx
"""The package that the OpenAI client sends its requests with."""
ANSWER = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [], "data": []}


class Network:
    """A transport in the process, a client at some address, and the requests that it has sent."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        answer: Callable[[Any], Any] | None = None,
    ) -> None:
        self.requests: list[Any] = []
        self._answer = answer or (lambda _: HTTPX.Response(200, json=ANSWER, headers=headers or {}))
        transport = HTTPX.MockTransport(self._record)
        self.http_client = HTTPX.Client(transport=transport, follow_redirects=True)
        self.client = self.client_at(url)

    def client_at(self, url: str) -> openai.OpenAI:
        """Return a client at another address of the same network."""
        return openai.OpenAI(base_url=url, api_key="key", http_client=self.http_client, max_retries=0)

    @property
    def seen(self) -> list[bool]:
        """Whether each request was annotated."""
        return ["x-autellix-call-id" in request.headers for request in self.requests]

    def _record(self, request: Any) -> Any:
        self.requests.append(request)
        return self._answer(request)
