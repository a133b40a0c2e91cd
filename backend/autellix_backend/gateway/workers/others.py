"""A worker's access to the other workers, through their parent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autellix_backend.gateway.errors import ParentSilentError
from autellix_backend.gateway.workers.hub import ASK_OTHERS, PAGE, WORKER_ANSWER_S
from autellix_backend.gateway.workers.link import Link, LinkLostError

PARENT_ANSWER_S = WORKER_ANSWER_S + 1.0
"""The workers' time, plus some for the parent."""


class OtherWorkers:
    """The other workers of the same address; none without a link."""

    def __init__(self, link: Link | None = None) -> None:
        self._link = link

    @property
    def exist(self) -> bool:
        """Whether there are any."""
        return self._link is not None

    def answer(self, kind: str, handler: Callable[[Any], Any]) -> None:
        """Answer the others' questions of a kind; answers are plain data, never None."""
        if self._link is not None:
            self._link.handlers[kind] = handler

    async def ask(self, kind: str, content: Any) -> Mapping[int, Any]:
        """Return the other workers' answers by number; None for one that does not answer in time."""
        if self._link is None:
            return {}
        try:
            answers: Mapping[int, Any] = await self._link.ask(ASK_OTHERS, (kind, content), PARENT_ANSWER_S)
        except (LinkLostError, TimeoutError):
            return {}
        return answers

    async def metrics_page(self) -> bytes | None:
        """Return the metrics of all workers in Prometheus' text format; None without other workers.

        Raises:
            ParentSilentError: if the parent does not answer: one worker's own counts would be far too low.
        """
        if self._link is None:
            return None
        try:
            page: bytes = await self._link.ask(PAGE, None, PARENT_ANSWER_S)
        except (LinkLostError, TimeoutError) as error:
            raise ParentSilentError("the metrics") from error
        return page

    def tell(self, kind: str, content: Any) -> None:
        """Send a notice that may be lost."""
        if self._link is not None:
            self._link.tell(kind, content, may_be_lost=True)
