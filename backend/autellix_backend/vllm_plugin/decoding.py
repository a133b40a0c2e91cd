"""The calls that decode in step after step: they are charged when somebody looks, not in each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autellix_backend.core.call import Call
from autellix_backend.core.machine import Machine
from autellix_backend.reports.call_arguments import CallIdentity
from autellix_backend.vllm_plugin.runs import CallRuns


@dataclass(slots=True, kw_only=True)
class TrackedCall:
    """A call inside the engine."""

    identity: CallIdentity
    call: Call
    arrival_step: int
    runs: CallRuns
    engine_steps: int = 0
    cached_tokens: int | None = None
    """Cached tokens of its first start."""


class DecodingCalls:
    """The calls that have decoded in every step since they came here.

    A step charges all of them alike. So its cost is added up once, however many they are, and a call is
    charged what has been added since it came once it leaves, or before something reads its service.
    """

    def __init__(self, machine: Machine, calls: Mapping[str, TrackedCall]) -> None:
        """Have no calls.

        Args:
            machine: The machine to charge.
            calls: Its calls by request id.
        """
        self._machine = machine
        self._calls = calls
        self._can_wait = not machine.policy.acts_on_service
        self._cost_s = 0.0
        self._steps = 0
        self._since: dict[str, tuple[float, int]] = {}
        """The cost and the steps that had been added up when a call was last charged."""

    def charge(self, decoded: Mapping[str, int], cost_s: float, now: float, *, tokens: int = 1) -> None:
        """Charge a step to the calls that decoded so many tokens in it; an unknown one has left."""
        if tokens > 1 or not self._can_wait or self._machine.shares.are_several:
            self._charge_now(decoded, cost_s, now, tokens)
            return
        if decoded.keys() != self._since.keys():
            for request_id in self._since.keys() - decoded.keys():
                self.stop(request_id, now)
            for request_id in decoded.keys() - self._since.keys():
                if request_id in self._calls:
                    self._calls[request_id].runs.decode()
                    self._since[request_id] = (self._cost_s, self._steps)
        self._cost_s += cost_s
        self._steps += 1

    def stop(self, request_id: str, now: float) -> None:
        """Charge a call that leaves, if it is here."""
        since = self._since.pop(request_id, None)
        if since is not None:
            self._bring_up(request_id, *since, now)

    def bring_up(self, now: float) -> None:
        """Charge all calls what they have had so far."""
        for request_id, since in self._since.items():
            self._bring_up(request_id, *since, now)
        self._since = dict.fromkeys(self._since, (self._cost_s, self._steps))

    def _bring_up(self, request_id: str, since_s: float, since_step: int, now: float) -> None:
        tracked, steps = self._calls[request_id], self._steps - since_step
        tracked.engine_steps += steps
        cost_s = self._cost_s - since_s
        self._machine.charge_step((tracked.call,), cost_s, now, tokens=steps, steps=steps)

    def _charge_now(self, decoded: Mapping[str, int], cost_s: float, now: float, tokens: int) -> None:
        for request_id in list(self._since):
            self.stop(request_id, now)
        charged, find = [], self._calls.get
        for request_id in decoded:
            tracked = find(request_id)
            if tracked is not None:
                tracked.engine_steps += 1
                tracked.runs.decode()
                charged.append(tracked.call)
        self._machine.charge_step(charged, cost_s, now, tokens=tokens)
