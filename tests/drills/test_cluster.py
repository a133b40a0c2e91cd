"""A drill that fails leaves its cluster to no other drill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.drills.cluster import Cluster, Line, SharedCluster
from tests.redis_server import RedisServer


def test_an_unsound_cluster_is_replaced(tmp_path: Path) -> None:
    ended: list[Cluster] = []

    @contextmanager
    def run() -> Iterator[Cluster]:
        redis = RedisServer("redis-server", tmp_path)
        cluster = Cluster(redis, Line(redis.port), engines=[], gateways=[], ledgers=[])
        yield cluster
        ended.append(cluster)

    shared = SharedCluster(run)
    first = shared.sound()
    assert shared.sound() is first
    first.is_sound = False
    second = shared.sound()
    assert second is not first
    assert ended == [first]
    shared.close()
    assert ended == [first, second]
