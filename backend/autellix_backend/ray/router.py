"""Our balancer as a request router of Ray Serve.

A deployment names it in its `RequestRouterConfig`:

    request_router_class="autellix_backend.ray.router.ProgramRouter"
    request_router_kwargs={"balancer": "locality", "threshold_tokens": 2048, "program_idle_s": 600}

Every proxy and every handle of a deployment has a router of its own, which remembers programs for itself.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from autellix_backend.ray.placing import Placing, Replica, ServedCall, read_call


class ProgramRouter(RequestRouter):
    """Sends the calls of a program to the replica that has its context, as a balancer of ours decides."""

    # Ray Serve's tenth of a second takes a replica that is busy for one that is full, and programs stray.
    queue_len_response_deadline_s = 2.0
    max_queue_len_response_deadline_s = 2.0

    def initialize_state(self, **kwargs: Any) -> None:
        """Take the deployment's `request_router_kwargs`: those of `Placing`."""
        self._placing = Placing(**kwargs)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank the replicas; Ray Serve goes down the ranks until one has room, and then asks again."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        by_name = {replica.replica_id.to_full_id_str(): replica for replica in candidate_replicas}
        views = [self._view(name, replica) for name, replica in by_name.items()]
        names = self._placing.ranked(_call(pending_request), views, time.monotonic())
        return [[by_name[name]] for name in names]

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,  # noqa: ARG002 - Ray Serve's signature
        result: Any,  # noqa: ARG002
    ) -> None:
        """Learn that a replica has taken a request."""
        self._placing.sent(_call(pending_request))

    def _view(self, name: str, replica: RunningReplica) -> Replica:
        calls = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return Replica(name=name, calls=calls, slots=replica.max_ongoing_requests)


def _call(request: PendingRequest) -> ServedCall:
    return read_call(_arguments(request), getattr(request.metadata, "session_id", ""))


def _arguments(request: PendingRequest) -> list[object]:
    """Return the arguments; an HTTP request comes pickled by the proxy, which is this same process."""
    arguments = list(request.args)
    if request.metadata.is_http_request and arguments and isinstance(arguments[0], bytes):
        arguments[0] = pickle.loads(arguments[0])
    return arguments
