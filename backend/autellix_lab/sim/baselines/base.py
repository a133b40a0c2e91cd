"""The interface of baselines, which replace the product's scheduler on one simulated engine."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from autellix_backend.core.admission.base import Admission
from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call
from autellix_backend.core.policies import Policy
from autellix_backend.core.table import Program
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.model import EngineModel


class Baseline(Admission, ABC):
    """Another system's scheduler: the policy and the KV blocks of an engine, and itself the admission."""

    name: ClassVar[str]
    policy: Policy
    """The order of calls inside the engine."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.blocks = CallBlocks(model, is_priced=False)
        self.capacity_tokens = math.inf if model.kv_blocks is None else model.kv_blocks * model.block_tokens
        """KV memory of the engine."""

    def is_due(self, step: int) -> bool:  # noqa: ARG002
        """Whether there may be anything to review."""
        return True

    @abstractmethod
    def arrive(self, call: Call, program: Program, context: Context | None, now: float) -> None:
        """Note an arriving call, and set whether it is admitted to the engine."""

    @abstractmethod
    def leave(self, call: Call, program: Program, context_tokens: int, now: float) -> None:
        """Note that a call has left, and the tokens of its whole context."""

    @abstractmethod
    def forget(self, program_id: str) -> None:
        """Note that a program has ended."""

    @abstractmethod
    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:
        """Decide, at the beginning of a step; return the calls that it admits, in their order."""
