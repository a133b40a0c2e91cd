"""Which agent started which, as far as foreign ids tell: a sub-agent's calls lead to its root program.

Clients name only the parent, and some only on an agent's first calls, so the links are remembered. They are
bounded in number, leave after the time that a program may idle, and never form a circle.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_LINKS = 65536
MAX_DEPTH = 32
"""Further up than this no root is sought: the agent reached counts as one."""

_Key = tuple[str, str]


class Lineage:
    """Links from agents to their parents, each within one scope (a tenant); `now` is in growing seconds."""

    def __init__(self, *, ttl_s: float, max_links: int = MAX_LINKS) -> None:
        self._ttl_s = ttl_s
        self._max_links = max_links
        # In the order of their last use, so that the oldest leave from one end.
        self._links: OrderedDict[_Key, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._links)

    def root(self, scope: str, agent: str, parent: str | None, now: float) -> str:
        """Return the root of `agent`, itself if nobody started it; remember `parent` if it is named.

        A parent that would close a circle is not believed.
        """
        self.expire(now)
        if parent is not None and agent not in self._ancestry(scope, parent, now):
            self._put((scope, agent), parent, now)
        return self._ancestry(scope, agent, now)[-1]

    def forget(self, scope: str, agent: str) -> None:
        """Drop the link of an agent that has ended; its own sub-agents keep theirs to it."""
        self._links.pop((scope, agent), None)

    def expire(self, now: float) -> None:
        """Drop the links that have not been used for `ttl_s`."""
        while self._links:
            key, (_, used_at) = next(iter(self._links.items()))
            if now - used_at < self._ttl_s:
                return
            del self._links[key]

    def _ancestry(self, scope: str, agent: str, now: float) -> list[str]:
        line = [agent]
        while len(line) <= MAX_DEPTH and (link := self._links.get((scope, line[-1]))) is not None:
            self._put((scope, line[-1]), link[0], now)
            line.append(link[0])
        return line

    def _put(self, key: _Key, parent: str, now: float) -> None:
        self._links[key] = (parent, now)
        self._links.move_to_end(key)
        if len(self._links) > self._max_links:
            self._links.popitem(last=False)
