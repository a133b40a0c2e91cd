"""The present moment for those who ask: open calls, engines, and what engines tell of their queues."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.gateway.calls.registry import CallRegistry, OpenCall
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.explain.situation import EngineView, OpenCallView, Situation


class Overview:
    """Looks at the parts of one gateway; changes nothing."""

    def __init__(
        self,
        pool: EnginePool,
        desk: CallRegistry,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._desk = desk
        self._clock = clock

    def now(self) -> float:
        """Return the time on the clock of the store."""
        return self._clock()

    def engines(self) -> dict[str, EngineView]:
        """Return the engines by name."""
        return {member.name: self.view(member) for member in self._pool}

    def view(self, member: EngineHandle) -> EngineView:
        """Return what is known of an engine."""
        failure = None
        if not member.supervisor.is_up:
            failure = member.engine.failure() or member.supervisor.problem
        return EngineView(
            name=member.name,
            failure=failure,
            sends_snapshots=member.sends_reports,
            # The last snapshot of a dead engine is out of date.
            snapshot=member.telemetry.snapshot if failure is None else None,
            age_s=member.telemetry.age_s if failure is None else None,
        )

    def situation(self) -> Situation:
        """Return the open calls and the engines of this moment."""
        return Situation(map(self._call, self._desk.open_calls()), self.engines())

    def _call(self, call: OpenCall) -> OpenCallView:
        return OpenCallView(
            key=call.engine_key,
            call_id=call.identity.call,
            program_id=call.identity.program,
            thread_id=call.identity.thread,
            engine=call.engine,
            open_s=self._clock() - call.start_s,
            level=call.level,
            entry_service_s=call.entry_service_s,
            held=self._why_queued(call),
        )

    def _why_queued(self, call: OpenCall) -> str | None:
        handle = self._pool.find(call.engine)
        return None if handle is None else handle.queue.why_queued(call.key)
