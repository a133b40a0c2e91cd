"""What the operators' endpoints look at: the open calls and the engines of this moment."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.gateway.calls.open_call import OpenCall
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.explain.overview import EngineView, OpenCallView, Overview


class Inspector:
    """Reads the pool and the registry; changes nothing."""

    def __init__(self, pool: EnginePool, registry: CallRegistry, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._registry = registry
        self.now = clock
        """The store's clock."""

    def overview(self) -> Overview:
        """Return the open calls and the engines of this moment."""
        engines = {handle.name: self.engine(handle) for handle in self._pool}
        return Overview(map(self._call, self._registry), engines)

    def engine(self, handle: EngineHandle) -> EngineView:
        """Return what is known of an engine; the last snapshot of one that is down is out of date."""
        if not handle.supervisor.is_up:
            failure = handle.engine.failure() or handle.supervisor.problem
            return EngineView(name=handle.name, failure=failure, sends_snapshots=handle.sends_reports)
        return EngineView(
            name=handle.name,
            sends_snapshots=handle.sends_reports,
            snapshot=handle.telemetry.snapshot,
            age_s=handle.telemetry.age_s,
        )

    def _call(self, call: OpenCall) -> OpenCallView:
        began, handle = call.began, self._pool.find(call.engine)
        return OpenCallView(
            key=call.engine_key,
            call_id=began.call_id,
            program_id=began.program_id,
            thread_id=began.thread_id,
            engine=call.engine,
            open_s=self.now() - began.at_s,
            level=began.level,
            entry_service_s=began.entry_service_s,
            queued_because=None if handle is None else handle.queue.why_queued(began.key),
        )
