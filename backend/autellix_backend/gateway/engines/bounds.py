"""Bounds on the calls of one engine that are still unanswered: their number and the bytes of their bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autellix_backend.gateway.errors import OverloadedError
from autellix_backend.settings import EngineSettings


@dataclass(slots=True, eq=False)
class QueueSpace:
    """A call's share of the bounds, until the first byte of its answer."""

    bounds: AdmissionBounds
    size_bytes: int
    is_released: bool = False

    def release(self) -> None:
        """Free the share; may be called twice."""
        if not self.is_released:
            self.is_released = True
            self.bounds.calls -= 1
            self.bounds.size_bytes -= self.size_bytes


class AdmissionBounds:
    """Admits calls while both bounds hold; a call counts until the first byte of its answer."""

    def __init__(self, engine: str, settings: EngineSettings, on_refusal: Callable[[str], None]) -> None:
        self._engine = engine
        self._max_calls = settings.max_waiting_calls
        self._max_bytes = settings.max_waiting_bytes
        self._on_refusal = on_refusal
        self.calls = 0
        self.size_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Return whether another call with a body of this size is within the bounds."""
        return self.calls < self._max_calls and self.size_bytes + size_bytes <= self._max_bytes

    def admit(self, size_bytes: int) -> QueueSpace:
        """Admit a call with a body of this size.

        Raises:
            OverloadedError: if it would exceed a bound.
        """
        if self.calls >= self._max_calls:
            self._on_refusal("queue_calls")
            raise OverloadedError(self._engine, f"{self._max_calls} calls (engine.max_waiting_calls)")
        if not self.has_room(size_bytes):
            self._on_refusal("queue_bytes")
            raise OverloadedError(self._engine, f"{self._max_bytes} bytes (engine.max_waiting_bytes)")
        return self.take(size_bytes)

    def take(self, size_bytes: int) -> QueueSpace:
        """Admit a call whatever the bounds, because another engine's bounds admitted it before."""
        self.calls += 1
        self.size_bytes += size_bytes
        return QueueSpace(self, size_bytes)
