"""Restarts back off and end."""

from __future__ import annotations

from autellix_backend.engines.restarts import RestartPlan


def test_the_first_is_due_at_once_and_the_delays_double() -> None:
    plan = RestartPlan(limit=5, window_s=100.0, first_delay_s=0.5)
    assert [plan.next_delay_s(float(now)) for now in range(6)] == [0.0, 0.5, 1.0, 2.0, 4.0, None]


def test_delays_have_a_bound() -> None:
    plan = RestartPlan(limit=40, window_s=100.0, first_delay_s=1.0)
    assert max(plan.next_delay_s(0.0) or 0.0 for _ in range(40)) == 60.0


def test_what_lies_outside_the_window_is_forgotten() -> None:
    plan = RestartPlan(limit=2, window_s=10.0, first_delay_s=1.0)
    assert [plan.next_delay_s(now) for now in (0.0, 5.0, 9.9, 10.0, 14.9, 15.0)] == [
        0.0,
        1.0,
        None,
        1.0,
        None,
        1.0,
    ]


def test_no_restart_is_possible_where_none_is_allowed() -> None:
    assert RestartPlan(limit=0, window_s=10.0, first_delay_s=1.0).next_delay_s(0.0) is None
