"""How many connections a server may have, and which leaves for a newer one."""

from __future__ import annotations

import resource

import pytest

from autellix_backend.gateway.http import connections
from autellix_backend.gateway.http.connections import ConnectionTable


class Peer:
    is_evicted = False

    def evict(self) -> None:
        self.is_evicted = True


def test_the_oldest_idle_connection_leaves_for_a_new_one() -> None:
    table = ConnectionTable(3)
    busy, idle, later = Peer(), Peer(), Peer()
    assert all(table.add(each) for each in (busy, idle, later))
    table.set_busy(busy)
    assert table.add(Peer())
    assert [busy.is_evicted, idle.is_evicted, later.is_evicted] == [False, True, False]


def test_connections_with_requests_leave_for_none() -> None:
    table = ConnectionTable(1)
    busy = Peer()
    assert table.add(busy)
    table.set_busy(busy)
    assert not table.add(Peer())
    table.set_idle(busy)
    assert table.add(Peer())
    assert busy.is_evicted


def test_half_of_the_files_are_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert connections.connection_limit() == 480
    assert raised == [(1024, 1024)]
    raised.clear()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connections.connection_limit() == connections.MAX_CONNECTIONS
    assert not raised
