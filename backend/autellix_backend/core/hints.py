"""The hints of a client: what it says about the urgency, the size, the group and the return of its program.

One record from the request to the engine's machine. A new hint is a field here, a row of the gateway's table
(`identity.hints`), and whatever reads it.
"""

from __future__ import annotations

import msgspec

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


NO_HINTS = Hints()
