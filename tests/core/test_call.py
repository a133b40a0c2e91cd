"""A call's own account of its waiting."""

from __future__ import annotations

from autellix_backend.core.call import Call


def test_the_waiting_while_its_program_is_inactive_is_counted_apart() -> None:
    call = Call(
        call_id="c",
        program_id="p",
        thread_id="0",
        arrival_s=0.0,
        inherited_service_s=0.0,
        waiting_since_s=0.0,
    )
    call.withdraw(2.0)
    assert call.inactive_at(5.0) == 3.0
    call.enter(5.0)
    assert call.inactive_at(9.0) == 3.0
    call.withdraw(10.0)
    record = call.record(11.0, is_aborted=False)
    assert (record.inactive_s, record.wait_s) == (4.0, 11.0)
