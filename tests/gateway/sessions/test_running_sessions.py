"""Which sessions count as running."""

from __future__ import annotations

from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.sessions.running_sessions import RunningSessions
from autellix_backend.stores.memory import MemoryStore

GRACE_S = 30.0


class FailingStore(MemoryStore):
    """A store with a problem that the test sets."""

    problem: str | None = None

    def failure(self) -> str | None:
        """Return the problem."""
        return self.problem


def test_a_session_may_be_lost_until_heartbeats_have_come_after_an_outage() -> None:
    now = 0.0
    store = FailingStore(make_policy("plas"), program_idle_s=1.0, session_ttl_s=1.0)
    sessions = RunningSessions(store, clock=lambda: now, is_shared=True, grace_s=GRACE_S)
    assert not sessions.may_be_lost("s")
    store.problem = "Redis is away"
    now = 100.0
    assert sessions.may_be_lost("s")
    store.problem = None
    now = 100.0 + GRACE_S - 1.0
    assert sessions.may_be_lost("s")
    now = 100.0 + GRACE_S + 1.0
    assert not sessions.may_be_lost("s")
