"""The parameters of endpoints: components, the tenant of the request, and the open calls of the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from autellix_backend.gateway.calls.open_call import OpenCall
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.explain.event_feed import EventFeed
from autellix_backend.gateway.explain.overview import EngineView, OpenCallView, Overview
from autellix_backend.gateway.http.watches import Watches
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.settings import Settings
from autellix_backend.stores.base import ProgramStore


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
            snapshot=handle.snapshot,
            age_s=handle.snapshot_age_s,
        )

    def _call(self, call: OpenCall) -> OpenCallView:
        start, handle = call.start, self._pool.find(call.engine)
        return OpenCallView(
            key=call.engine_key,
            call_id=start.call_id,
            program_id=start.program_id,
            thread_id=start.thread_id,
            engine=call.engine,
            open_s=self.now() - call.began_s,
            level=call.level,
            entry_service_s=call.entry_service_s,
            queued_because=None if handle is None else handle.queue.why_queued(start.key),
        )


def _component(name: str) -> Any:
    async def read(request: Request) -> Any:
        return getattr(request.app.state.components, name)

    return Depends(read)


async def _inspector(request: Request) -> Inspector:
    components = request.app.state.components
    return Inspector(components.pool, components.registry, components.clock)


async def _viewer(request: Request) -> Tenant:
    tenant: Tenant = request.app.state.components.tenants.of(request.scope)
    return tenant


Clock = Annotated[Callable[[], float], _component("clock")]
Feed = Annotated[EventFeed, _component("feed")]
Metrics = Annotated[GatewayMetrics, _component("metrics")]
Pool = Annotated[EnginePool, _component("pool")]
SettingsTree = Annotated[Settings, _component("settings")]
Store = Annotated[ProgramStore, _component("store")]
Tokens = Annotated[SessionTokens, _component("tokens")]
WatchRegistry = Annotated[Watches, _component("watches")]
Inspection = Annotated[Inspector, Depends(_inspector)]
Viewer = Annotated[Tenant, Depends(_viewer)]
"""The tenant of the request."""


def admin_only(what: str) -> Any:
    """Return a dependency that refuses tenants that are no admins."""

    async def check(viewer: Viewer) -> None:
        viewer.check_admin(what)

    return Depends(check)
