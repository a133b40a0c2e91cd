"""A request router for Ray Serve with our balancer.

A deployment names it in its `RequestRouterConfig`:

    request_router_class="autellix_backend.ray_serve.router.ProgramRouter"
    request_router_kwargs={"balancer": "locality", "threshold_tokens": 2048, "program_idle_s": 600}

Every proxy and every handle of a deployment has its own router with its own programs.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from autellix_backend.core.balance import EngineLoad
from autellix_backend.ray_serve.placement import ServedCall, ServePlacement, read_call, replica_load


class ProgramRouter(RequestRouter):
    """Sends a program's calls to the replica with its context, as our balancer decides."""

    # With Ray Serve's default of 0.1 s a busy replica counts as full, and programs lose their replica.
    queue_len_response_deadline_s = 2.0
    max_queue_len_response_deadline_s = 2.0

    def initialize_state(self, **kwargs: Any) -> None:
        """Accept the deployment's `request_router_kwargs`: those of `ServePlacement`."""
        self._placement = ServePlacement(**kwargs)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank the replicas; Ray Serve tries the ranks in order until one has room."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        by_name = {replica.replica_id.to_full_id_str(): replica for replica in candidate_replicas}
        loads = [self._load(name, replica) for name, replica in by_name.items()]
        names = self._placement.ranked(_call(pending_request), loads, time.monotonic())
        return [[by_name[name]] for name in names]

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,  # noqa: ARG002 - Ray Serve's signature
        result: Any,  # noqa: ARG002
    ) -> None:
        """Note that a replica accepted a request."""
        self._placement.sent(_call(pending_request))

    def _load(self, name: str, replica: RunningReplica) -> EngineLoad:
        calls = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return replica_load(name, calls, replica.max_ongoing_requests)


def _call(request: PendingRequest) -> ServedCall:
    return read_call(_arguments(request), getattr(request.metadata, "session_id", ""))


def _arguments(request: PendingRequest) -> list[object]:
    """Return the arguments; the proxy, this same process, has pickled an HTTP request."""
    arguments = list(request.args)
    if request.metadata.is_http_request and arguments and isinstance(arguments[0], bytes):
        arguments[0] = pickle.loads(arguments[0])
    return arguments
