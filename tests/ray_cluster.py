"""A Ray cluster of two small nodes on this machine, for tests of what runs on one."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NODES = 2
OBJECT_STORE_BYTES = 80 * 2**20
# Nothing is reported to Ray's makers, and nobody else gets in.
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


@contextmanager
def running_cluster() -> Iterator[Any]:
    """Yield a cluster, whose `address` is that of its head; skip where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: `.venv/bin/uv pip install -e './backend[ray]'`")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            for _ in range(NODES - 1):
                cluster.add_node(**node)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
