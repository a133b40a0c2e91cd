"""The gateway's metrics."""

from __future__ import annotations

from autellix_backend.observe.metrics import GatewayMetrics


def test_each_gateway_has_its_own_registry() -> None:
    first, second = GatewayMetrics(), GatewayMetrics()
    first.reaped.labels("session").inc(2)
    first.set_held(programs=3, sessions=2, active_calls=1)
    assert b'autellix_reaped_total{kind="session"} 2.0' in first.render()
    assert b'autellix_held{kind="programs"} 3.0' in first.render()
    assert b"2.0" not in second.render()
