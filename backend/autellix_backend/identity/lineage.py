"""Which agent started which, by foreign ids: a sub-agent's calls lead to its root program.

Clients name only the parent, and some only on an agent's first calls, so the links are remembered. They are
bounded in number, leave after the time that a program may idle, and never form a cycle.
"""

from __future__ import annotations

from autellix_backend.core.recent import RecentMap

MAX_LINKS = 65536
MAX_DEPTH = 32
"""The search for a root ends here: the agent it has reached counts as one."""


class Lineage:
    """Links from agents to their parents, each within one scope (a tenant); `now` is in monotonic seconds."""

    def __init__(self, *, ttl_s: float, max_links: int = MAX_LINKS) -> None:
        self._parents: RecentMap[str, str] = RecentMap(ttl_s=ttl_s, max_entries=max_links)

    def __len__(self) -> int:
        return len(self._parents)

    def root(self, scope: str, agent: str, parent: str | None, now: float) -> str:
        """Return the root of `agent`, itself if it has no parent; `parent` counts as its own if it is named.

        A parent that would close a cycle is ignored.
        """
        self._parents.expire_of(scope, now)
        if parent is not None:
            ancestry = self._ancestry(scope, parent, now)
            if agent not in ancestry:
                return ancestry[:MAX_DEPTH][-1]
        return self._ancestry(scope, agent, now)[-1]

    def link(self, scope: str, agent: str, parent: str, now: float) -> None:
        """Remember the parent of an agent, unless it would close a cycle."""
        if agent not in self._ancestry(scope, parent, now):
            self._parents.put(scope, agent, parent, now)

    def forget(self, scope: str, agent: str) -> None:
        """Drop the link of an agent that has ended; its own sub-agents keep theirs to it."""
        self._parents.discard(scope, agent)

    def expire(self, now: float) -> None:
        """Drop the links that have not been used for `ttl_s`."""
        self._parents.expire(now)

    def _ancestry(self, scope: str, agent: str, now: float) -> list[str]:
        ancestry = [agent]
        while len(ancestry) <= MAX_DEPTH and self._parents.has(scope, ancestry[-1]):
            ancestry.append(self._parents.use(scope, ancestry[-1], now))
        return ancestry
