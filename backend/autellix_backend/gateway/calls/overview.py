"""The open calls and engines of this moment, for the explanation of programs and for operators."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.gateway.calls.open_call import OpenCall
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.explain.situation import EngineView, OpenCallView, Situation


class Overview:
    """Reads the pool and the registry; changes nothing."""

    def __init__(self, pool: EnginePool, registry: CallRegistry, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._registry = registry
        self._clock = clock

    def now(self) -> float:
        """Return the time on the clock of the store."""
        return self._clock()

    def engines(self) -> dict[str, EngineView]:
        """Return the engines by name."""
        return {handle.name: self.view(handle) for handle in self._pool}

    def view(self, handle: EngineHandle) -> EngineView:
        """Return what is known of an engine."""
        failure = None
        if not handle.supervisor.is_up:
            failure = handle.engine.failure() or handle.supervisor.problem
        return EngineView(
            name=handle.name,
            failure=failure,
            sends_snapshots=handle.sends_reports,
            # The last snapshot of a dead engine is out of date.
            snapshot=handle.telemetry.snapshot if failure is None else None,
            age_s=handle.telemetry.age_s if failure is None else None,
        )

    def situation(self) -> Situation:
        """Return the open calls and the engines of this moment."""
        return Situation(map(self._call, self._registry), self.engines())

    def _call(self, call: OpenCall) -> OpenCallView:
        handle = self._pool.find(call.engine)
        return OpenCallView(
            key=call.engine_key,
            call_id=call.began.call_id,
            program_id=call.began.program_id,
            thread_id=call.began.thread_id,
            engine=call.engine,
            open_s=self._clock() - call.began.at_s,
            level=call.began.level,
            entry_service_s=call.began.entry_service_s,
            held=None if handle is None else handle.queue.why_queued(call.began.key),
        )
