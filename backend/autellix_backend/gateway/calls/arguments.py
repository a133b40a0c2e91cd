"""What an engine's scheduler learns of a call, in `vllm_xargs`: only what its settings let it read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.classes import ProgramClasses
from autellix_wire import engine_args


class EngineArguments:
    """Builds the engine arguments of calls."""

    def __init__(
        self,
        scheduler: SchedulerConfig,
        classes: ProgramClasses,
        gateway_id: str,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._has_boost = make_policy(scheduler.policy).boosts
        self._has_classes = self._has_boost or scheduler.admission != "none"
        self._classes = classes
        self._gateway_id = gateway_id
        self._clock = clock

    def of(self, call: GatewayCall, ended: Sequence[str], *, is_linked: bool) -> dict[str, str | float]:
        """Return the arguments of a call.

        Args:
            call: The call.
            ended: Programs that the engine knows and that have ended.
            is_linked: Whether the engine may report over the network, and so to several gateways.
        """
        tenant, inherited = call.tenant, call.inherited
        args: dict[str, str | float] = {
            engine_args.PROGRAM: call.start.program_id,
            engine_args.CALL: call.engine_key,
            engine_args.THREAD: call.start.thread_id,
            engine_args.SERVICE_S: inherited.service_s,
            engine_args.WAIT_S: inherited.wait_s,
        }
        if inherited.program_service_s != inherited.service_s:
            args[engine_args.PROGRAM_SERVICE_S] = inherited.program_service_s
        if inherited.expected_s is not None:
            args[engine_args.EXPECTED_S] = inherited.expected_s
        if tenant.name:
            args[engine_args.TENANT] = tenant.name
            args[engine_args.WEIGHT] = tenant.weight
        if call.ends_program:
            args[engine_args.LAST] = 1
        if is_linked:
            args[engine_args.GATEWAY] = self._gateway_id
        if self._has_boost:
            args |= self._boost_args(call)
        if self._has_classes and call.arrival.class_name:
            args[engine_args.CLASS] = call.arrival.class_name
        if self._has_classes and ended:
            args[engine_args.ENDED] = msgspec.json.encode(ended).decode()
        return args

    def _boost_args(self, call: GatewayCall) -> dict[str, str | float]:
        """Return what a policy that boosts programs reads of the call's program."""
        args: dict[str, str | float] = {
            engine_args.AGE_S: call.inherited.age_s + self._clock() - call.began_s,
            engine_args.WORK: call.inherited.work,
        }
        if (spread := self._classes.spread(call.tenant.name)) is not None:
            args[engine_args.SPREAD] = spread
        return args
