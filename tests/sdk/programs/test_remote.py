"""What work in another process inherits of its program."""

from __future__ import annotations

import pickle

import autellix
from autellix._programs.remote import context_of, enter_remote, leave_remote
from autellix._programs.running import running_thread


def test_work_elsewhere_has_the_priority_of_its_program(sdk: None) -> None:
    with autellix.program("report", priority="batch"):
        context = pickle.loads(pickle.dumps(context_of(running_thread())))
    context.program_id = "elsewhere"

    thread = enter_remote(context)
    try:
        assert thread.program.hints.priority == "batch"
    finally:
        leave_remote(thread)
