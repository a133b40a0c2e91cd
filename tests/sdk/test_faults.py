"""The client's own faults stay inside; what the user's signal handlers raise does not."""

from __future__ import annotations

import functools
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

import autellix
from autellix._faults import safely
from autellix._programs.registry import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class LimitError(Exception):
    """Of a job, as Celery's soft limit."""


def limit(_number: int, _frame: object) -> None:
    raise_limit()


def raise_limit() -> None:
    raise LimitError


class Limit:
    """A handler that is an object, with a method that is one too."""

    def __call__(self, _number: int, _frame: object) -> None:
        raise LimitError

    def reach(self, _number: int, _frame: object) -> None:
        raise LimitError


HANDLERS: list[Callable[[int, Any], Any]] = [limit, functools.partial(limit), Limit(), Limit().reach]


@pytest.fixture(params=HANDLERS, ids=["function", "partial", "object", "method"])
def limited(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal")
def test_what_a_signal_handler_raises_passes_through(limited: None) -> None:
    with pytest.raises(LimitError):
        safely(signal.raise_signal, signal.SIGUSR1)


def test_faults_stay_inside_whoever_raises_them() -> None:
    """A function that is no handler, at any depth, and the recursion limit."""
    assert safely(limit, 0, None) is None
    assert safely(int, "x") is None

    def recurse() -> None:
        recurse()

    assert safely(recurse) is None


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal")
def test_a_scope_that_a_signal_interrupts_is_not_entered(sdk: None, limited: None) -> None:
    """Wherever the limit comes in the entry of a scope, nothing is in that scope afterwards."""
    lines = 0
    while not enters_before_line(lines):
        assert autellix.current().is_implicit
        lines += 1
    assert lines > 10
    # A program that was opened, but whose scope was not: a table entry that nothing will remove.
    programs._open.clear()


def enters_before_line(number: int) -> bool:
    """Return whether a scope is entered before so many lines of the client have run, when the limit comes."""
    lines = iter(range(number))

    def trace(frame: Any, event: str, _arg: object) -> Any:
        code = frame.f_code
        # What a finalizer raises is the interpreter's to report.
        is_ours = "autellix" in code.co_filename and code.co_name != "__del__" and programs._open
        if is_ours and event == "line" and next(lines, None) is None:
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with autellix.program("limited"):
            sys.settrace(None)
            return True
    except LimitError:
        return False
    finally:
        sys.settrace(before)
