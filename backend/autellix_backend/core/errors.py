"""Errors of the core.

CoreError
├── UnknownCallError       (also KeyError)
├── DuplicateCallError     (also ValueError)
├── IllegalMoveError       (also ValueError)
├── UnknownProgramError    (also KeyError)
├── UnknownPolicyError     (also ValueError)
├── UnknownBalancerError   (also ValueError)
└── NoEngineError
"""

from __future__ import annotations

from collections.abc import Iterable


class CoreError(Exception):
    """Base of every error the core raises."""

    def __str__(self) -> str:
        # KeyError would show the message in quotes.
        return str(self.args[0])


class UnknownCallError(CoreError, KeyError):
    """The call never arrived, or has left already."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"call {call_id!r} is not active: it has not arrived, or it finished or was aborted")


class DuplicateCallError(CoreError, ValueError):
    """A call arrived under the id of an active call."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"call {call_id!r} is active already: give each call its own id")


class IllegalMoveError(CoreError, ValueError):
    """A call or a program cannot move so from its state."""

    def __init__(self, which: str, move: str, state: str, story: str) -> None:
        super().__init__(f"cannot {move} {which} while it is {state} ({story})")


class UnknownProgramError(CoreError, KeyError):
    """The program has no entry in the process table."""

    def __init__(self, program_id: str) -> None:
        super().__init__(f"program {program_id!r} has no entry in the process table")


class UnknownPolicyError(CoreError, ValueError):
    """No policy has this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"policy {name!r} is unknown; the policies are {', '.join(sorted(known))}")


class UnknownBalancerError(CoreError, ValueError):
    """No balancer has this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"balancer must be one of {', '.join(known)}, not {name!r}")


class NoEngineError(CoreError):
    """A call cannot be sent anywhere."""

    def __init__(self, engines: int) -> None:
        super().__init__(f"none of {engines} engine(s) accepts calls: all are down or drain")
