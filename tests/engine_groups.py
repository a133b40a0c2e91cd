"""The order of the tests, and which share a real engine.

One worker runs all that share one, for an engine takes most of a minute to start.

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
    "tests/drills/test_live_models.py": "live_engine",
    "tests/gateway/test_live.py": "live_engine",
    "tests/engines/test_live_replica.py": "live_engine",
    "tests/integrations/test_real_backend.py": "live_engine",
    "tests/lab/cli/test_bench.py": "live_engine",
    "tests/vllm_plugin/test_offload.py": "engine_worker",
    "tests/vllm_plugin/test_offline_agents.py": "engine_worker",
    "tests/vllm_plugin/test_scheduler.py": "engine_worker",
    "tests/vllm_plugin/test_tenants.py": "engine_worker",
    "tests/lab/demo/test_live.py": "demo",
    "tests/gateway/engines/test_live_pool.py": "two engines",
    "tests/gateway/test_live_admission.py": "short engine",
    "tests/gateway/engines/test_live_plain.py": "plain engine",
    "tests/vllm_plugin/test_live_middleware.py": "inside engine",
}
"""The group of each file; where tests share an engine, it has the name of their fixture."""

LONG = (
    "tests/drills/test_drills.py",
    "tests/drills/test_upgrade.py",
    "tests/kernels/test_cuda_stand_in.py",
    "tests/gateway/test_redteam.py::test_the_quiet_tenant",
    "tests/gateway/test_soak.py::test_the_gateway_keeps_nothing",
    "tests/kernels/test_gpu_benchmark.py",
    "tests/kernels/test_sanitizers.py",
    "tests/kernels/test_planted_faults.py",
    "tests/sdk/test_stress.py",
    # One worker for both: the libraries that make the model take seconds to import.
    "tests/lab/demo/test_model.py",
    "tests/cli/test_main.py::test_demo_model_prints",
)
"""Tests that start first: at the end of the run they would leave the other workers idle."""


class EngineGroups(LoadScopeScheduling):
    """Hands out the tests of a group together, and other tests by their file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return GROUPS.get(path, path)


def put_in_order(items: list[pytest.Item]) -> None:
    """Sort tests by their group, as the groups are listed; then come the long ones, then all others.

    Raises:
        UsageError: a test shares an engine, and its file is not in that engine's group.
    """
    for item in items:
        check_group(item.nodeid.partition("::")[0], getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: _place(item.nodeid))


def _place(nodeid: str) -> int:
    in_order = (*GROUPS, *LONG)
    return next((at for at, start in enumerate(in_order) if nodeid.startswith(start)), len(in_order))


def check_group(path: str, fixtures: Sequence[str]) -> None:
    """Refuse a file that shares an engine without being in its group."""
    for fixture in set(GROUPS.values()).intersection(fixtures):
        if GROUPS.get(path) != fixture:
            raise pytest.UsageError(f"{path} uses {fixture}; expected it in tests/engine_groups.py")
