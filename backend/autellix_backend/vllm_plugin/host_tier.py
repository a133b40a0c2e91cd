"""Host memory for admission, which keeps the contexts of programs that wait.

Our connector stores every full block once it is computed, so a program that becomes inactive leaves its
context behind without a copy. This module passes on one decision: host memory keeps the contexts that
admission counts on before all others. vLLM begins a load once it has a slot for the request.
"""

from __future__ import annotations

from typing import Any

from autellix_backend.vllm_plugin.tracker import CallTracker


class HostTier:
    """The host memory of our connector as admission uses it; without either, none."""

    def __init__(self, connector: Any, tracker: CallTracker) -> None:
        self._admission = tracker.machine.admission
        has_tier = self._admission.memory is not None and hasattr(connector, "load_of")
        self._connector = connector if has_tier else None
        if has_tier:
            self._admission.use_host_memory(connector.load_of, connector.host_tokens)

    def on_reviewed(self) -> None:
        """Keep the contexts that admission counts on, after requests have arrived or been reviewed."""
        if self._connector is not None:
            self._connector.manager.keep(self._admission.take_stored())
