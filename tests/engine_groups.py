"""Which tests share a real engine: one worker runs them all, for an engine takes most of a minute to start.

xdist's own groups do nothing with pytest 9.2, which keeps a test's id where xdist does not write it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    # The longest first, so that the workers end at about the same time.
    "tests/gateway/test_live_failures.py": "failing engine",
    "tests/gateway/test_live_links.py": "linked engine",
    "tests/lab/cli/test_sim.py": "live_engine",
    "tests/gateway/calls/test_conformance.py": "live_engine",
    "tests/gateway/test_live.py": "live_engine",
    "tests/engines/test_live_replica.py": "live_engine",
    "tests/integrations/test_real_backend.py": "live_engine",
    "tests/lab/cli/test_bench.py": "live_engine",
    "tests/vllm_plugin/test_pause.py": "live_engine",
    "tests/vllm_plugin/test_offload.py": "engine_worker",
    "tests/vllm_plugin/test_scheduler.py": "engine_worker",
    "tests/vllm_plugin/test_tenants.py": "engine_worker",
    "tests/lab/demo/test_live.py": "demo",
    "tests/gateway/engines/test_live_pool.py": "two engines",
    "tests/gateway/test_live_admission.py": "short engine",
}
"""The group of each file; where tests share an engine, it has the name of their fixture."""


class EngineGroups(LoadScopeScheduling):
    """Hands out the tests of a group together, and other tests by their file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return GROUPS.get(path, path)


def put_in_order(items: list[pytest.Item]) -> None:
    """Sort tests by their group, as the groups are listed; all others come last.

    Raises:
        UsageError: a test shares an engine, and its file is not in that engine's group.
    """
    for item in items:
        check_group(item.nodeid.partition("::")[0], getattr(item, "fixturenames", ()))
    places = {path: place for place, path in enumerate(GROUPS)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def check_group(path: str, fixtures: Sequence[str]) -> None:
    """Refuse a file that shares an engine without being in its group."""
    for fixture in set(GROUPS.values()).intersection(fixtures):
        if GROUPS.get(path) != fixture:
            raise pytest.UsageError(f"{path} uses {fixture}; expected it in tests/engine_groups.py")
