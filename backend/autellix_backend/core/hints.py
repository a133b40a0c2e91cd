"""The hints of a client: what it says about the urgency, the size, the group and the return of its program.

One record from the request to the engine's machine. A new hint is a field here, a row of the gateway's table
(`identity.hints`), and whatever reads it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from autellix_backend.core.priority import Priority


class Hints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the client of a call says about its program, from this call on; all of it may be absent."""

    priority: Priority = Priority.DEFAULT
    """How urgent the program is to its tenant."""
    group: str = ""
    """The name of the group that the program is compared with, within its tenant; empty without one."""
    class_name: str = msgspec.field(default="", name="class")
    """The class of the program, whose programs have similar gaps between calls; empty until it is known."""
    return_s: float | None = None
    """The expected time (s) from the end of the call to the next one of its program."""
    retain_s: float | None = None
    """The longest time (s) for which the context should be kept after the call."""
    expected_calls: float | None = None
    """The calls that the program is expected to make, this one included."""
    expected_tokens: float | None = None
    """The tokens that it is expected to generate."""

    @property
    def has_size(self) -> bool:
        """Whether they say how much the program will need."""
        return self.expected_calls is not None or self.expected_tokens is not None

    def plus(self, calls: float, tokens: float) -> Hints:
        """Return the hints for an earlier moment: what was done since is added to the size."""
        return replace(
            self,
            expected_calls=None if self.expected_calls is None else self.expected_calls + calls,
            expected_tokens=None if self.expected_tokens is None else self.expected_tokens + tokens,
        )

    def less(self, calls: float, tokens: float) -> Hints:
        """Return the hints for a later moment; a size that is used up by then is unknown."""
        return replace(
            self,
            expected_calls=_rest(self.expected_calls, calls),
            expected_tokens=_rest(self.expected_tokens, tokens),
        )


def _rest(expected: float | None, done: float) -> float | None:
    return expected - done if expected is not None and expected > done else None


NO_HINTS = Hints()
