"""Which programs may run at all: the interface of admission in front of a machine's batch.

The policy orders calls; admission keeps some of them out of the batch, however they are ordered, for example
while the contexts of the programs that are running fill the KV cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from autellix_backend.core.call import Call
from autellix_backend.core.table import Program

__all__ = ["Admission"]


class Admission(ABC):
    """Decides which active calls may enter the batch; called once for each call's arrival and end."""

    @abstractmethod
    def admits(self, call: Call) -> bool:
        """Whether the call may be in the batch; asked of every call of each walk, so it must be cheap."""

    def on_arrived(self, call: Call, program: Program) -> None:  # noqa: B027 - optional
        """React to a call that has been queued."""

    def on_left(self, call: Call, program: Program) -> None:  # noqa: B027 - optional
        """React to a call that has finished or was aborted; its program has been charged."""
