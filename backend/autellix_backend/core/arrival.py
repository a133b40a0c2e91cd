"""A call that arrives at a queue: who it belongs to, and what its caller knows of its program."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import msgspec

from autellix_backend.core.hints import NO_HINTS, Hints


class Context(msgspec.Struct, frozen=True, gc=False):
    """The KV memory that a call needs, in tokens."""

    tokens: int
    """Its whole context at its arrival."""
    shared_tokens: int = 0
    """Leading tokens that an earlier call of its program holds as well."""
    prefix: Hashable = None
    """The id of leading tokens that other programs have too, such as a tool list; None if there are none."""
    prefix_tokens: int = 0
    follows: str | None = None
    """The earlier call of its program that holds the shared tokens, by its id; None for the latest one."""


class _Ids(msgspec.Struct, frozen=True, gc=False):
    call_id: str
    """Unique among the active calls of the queue."""
    program_id: str


class Arrival(_Ids, frozen=True, kw_only=True, gc=False):
    """A call as it arrives; a bad weight raises ValueError."""

    is_identified: bool = True
    """Whether anything identified its program; else that is this one call, as far as is known."""
    thread_id: str = "0"
    tenant: str = ""
    """Its tenant; tenants share the engine by weight."""
    weight: float = 1.0
    """The tenant's share of the engine, in proportion to the weights of the others."""
    service_s: float | None = None
    """The program's service and waiting, where the caller keeps them: the table takes the larger value."""
    wait_s: float | None = None
    inherited_s: float | None = None
    """The service that the call itself starts with, for policies that read parents; None if not looked up."""
    parents: Sequence[str] | None = None
    """The calls that this one follows, for policies that read parents; None if unknown."""
    path_id: str | None = None
    """The name by which later calls know it as their parent, if that is not its id here."""
    expected_s: float | None = None
    """Expected service (s) of the call (`sjf`) or of its program from here on (`srpt`)."""
    age_s: float | None = None
    """Time (s) since the first call of its program arrived anywhere; None if that was here."""
    work: float | None = None
    """The work of its program's finished calls, where the caller keeps it: the larger value wins."""
    hints: Hints = NO_HINTS
    """What its client says of its program from here on."""
    context: Context | None = None
    """The KV memory that it needs, for admission; None counts as nothing."""
    is_pinned: bool = False
    """Whether it comes with KV memory of its own, as prefilled by another engine: it is admitted at once."""

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that no earlier call of its program holds, and no other program; 0 if unknown."""
        context = self.context
        if context is None:
            return 0
        return max(0, context.tokens - max(context.shared_tokens, context.prefix_tokens))

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be positive and finite, not {self.weight}")
