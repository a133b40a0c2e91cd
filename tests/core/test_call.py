"""A call's own account of its waiting."""

from __future__ import annotations

from tests.core.calls import make_call


def test_the_waiting_while_its_program_is_inactive_is_counted_apart() -> None:
    call = make_call()
    call.withdraw(2.0)
    assert call.inactive_at(5.0) == 3.0
    call.enter(5.0)
    assert call.inactive_at(9.0) == 3.0
    call.withdraw(10.0)
    record = call.record(11.0, is_aborted=False)
    assert (record.inactive_s, record.wait_s) == (4.0, 11.0)
