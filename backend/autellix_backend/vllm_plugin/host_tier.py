"""Host memory for admission: contexts of waiting programs are kept there, and loaded ahead of a slot.

Our connector stores every full block once it is computed, so a program that becomes inactive leaves its
context behind without a copy. This module passes on two decisions: host memory keeps the contexts that
admission counts on before all others, and the load of an admitted request begins in the step that admits it.
vLLM itself begins a load when it has a slot for the request, which then idles until the load is done.

A load needs a request, because vLLM allocates blocks to nothing else. No load is missed by that: a program is
activated only for a call that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.v1.request import Request, RequestStatus

from autellix_backend.vllm_plugin.engine_state import SchedulerState
from autellix_backend.vllm_plugin.tracker import CallTracker


class HostTier:
    """The requests whose contexts may be in host memory; without our connector and admission, none."""

    def __init__(self, connector: Any, engine: SchedulerState, tracker: CallTracker) -> None:
        admission = tracker.machine.admission
        has_tier = admission.memory is not None and hasattr(connector, "loading_ahead")
        self._connector = connector if has_tier else None
        if has_tier:
            admission.use_host_memory(connector.load_of, connector.host_tokens)
        self._loads_ahead = has_tier and engine.blocks.loads_whole_contexts
        self._engine = engine
        self._tracker = tracker
        self._admitted: dict[str, None] = {}
        """Waiting requests whose contexts nobody has looked for in host memory since their admission."""

    @property
    def has_requests(self) -> bool:
        """Whether there is a request to look for in host memory."""
        return bool(self._admitted)

    def on_reviewed(self, request_ids: Iterable[str]) -> None:
        """Note requests that have arrived, or that admission has let in or withdrawn."""
        if self._connector is None:
            return
        self._connector.manager.keep(self._tracker.machine.admission.take_stored())
        for request_id in request_ids:
            if self._tracker.is_held_back(request_id):
                self._admitted.pop(request_id, None)
            else:
                self._admitted[request_id] = None

    def to_load(self) -> list[Request]:
        """Return the requests to look for in host memory while they wait for slots, in their order."""
        if not self._admitted or not self._loads_ahead or self._engine.is_paused:
            return []
        waiting = []
        for request_id in list(self._admitted):
            request = self._engine.find(request_id)
            if request is None or not self._engine.may_load(request):
                del self._admitted[request_id]
            else:
                waiting.append(request)
        if self._engine.free_slots > 0:
            # vLLM starts loads by itself.
            return []
        return sorted(waiting, key=lambda request: self._engine.order.rank(request).number)

    @contextmanager
    def loading_ahead(self, requests: Sequence[Request]) -> Iterator[None]:
        """Let vLLM start the loads of these requests in the step that it schedules meanwhile."""
        if not requests:
            yield
            return
        assert self._connector is not None
        with self._connector.loading_ahead() as without_load, self._engine.offering(requests):
            yield
        started = {r.request_id for r in requests if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS}
        self._connector.manager.tally["loads_ahead",] += len(started)
        for request_id in started | without_load:
            del self._admitted[request_id]
