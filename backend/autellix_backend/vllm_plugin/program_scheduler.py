"""Our scheduler for stock vLLM, which `scheduler.AutellixScheduler` makes.

A mixin over vLLM's scheduler, async or not. vLLM's `schedule()` runs unchanged; before it, the waiting queues
are put in the machine's order, and running requests outside the machine's batch are preempted. The hooks are
here, what they do in `plugin.py`, the choice of requests in `decisions.py`, access to vLLM's state in
`engine_state.py`.

Rules that keep outputs equal to a run without preemption:

- vLLM leaves a preempted request with output in flight ("stale") alone until that output has drained, so it
  is not admissible here either;
- a request whose last token is in flight is about to leave by itself and is never preempted;
- the model runner learns a resumed request's tokens only if it was absent from the previous step, so a
  preempted request is dropped from `prev_step_scheduled_req_ids`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from autellix_backend.reports.link import EngineFacts, address_of_rank
from autellix_backend.settings import report_secret
from autellix_backend.vllm_plugin.compatibility import (
    KNOWN_VERSIONS,
    is_known_release,
    vllm_version,
    why_incompatible,
)
from autellix_backend.vllm_plugin.own_order import report_own_order
from autellix_backend.vllm_plugin.plugin import SchedulerPlugin
from autellix_backend.vllm_plugin.report_server import ReportServer
from autellix_backend.vllm_plugin.settings import PluginSettings

# Below vLLM's own logger, whose handler shows it.
logger = logging.getLogger("vllm.autellix")

_FAILED = "Autellix scheduling failed; this engine goes on in order of arrival"
_FAILED_AT_START = "its scheduler has failed as it started (see above)"

# For the type checker the mixin has vLLM's scheduler below it, which it gets by being mixed in.
if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as _Host
else:
    _Host = object


class ProgramSchedulerMixin(_Host):
    """Program-aware order and preemption on top of the vLLM scheduler that it is mixed into.

    vLLM's scheduler has many names of its own, so ours are few: what we keep is in `plugin`.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)
    """The source of time; a test may set another."""
    plugin: SchedulerPlugin | None = None
    """Our part; None where it does not fit this vLLM."""
    _own_order: ReportServer | None = None
    """Tells gateways why it does not; None where it does."""
    is_on_trial = False
    """Whether this is the small scheduler of a trial."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = PluginSettings.from_additional_config(self.vllm_config.additional_config)
        problem = why_incompatible(self)
        if problem is None and not (self.is_on_trial or is_known_release()):
            problem = self._try_out()
        self.is_degraded = problem is not None
        if problem is None:
            self._set_up(settings)
        if problem is not None or self.is_degraded:
            self._own_order = report_own_order(self.vllm_config, problem or _FAILED_AT_START)
        elif settings.report_address is not None and self.plugin is not None:
            address = address_of_rank(settings.report_address, self.plugin.facts.rank)
            self.plugin.tracker.reports = ReportServer(address, report_secret(), self.facts)
        elif self.plugin is not None and not self.is_on_trial:
            # Without a gateway nothing else says so.
            logger.info("Autellix: calls are ordered by their programs, policy %s", self.plugin.facts.policy)

    def _try_out(self) -> str | None:
        """Return why a release that the tests do not know is left alone; None if it passes the self-test."""
        name = f"vLLM {vllm_version()} is not one of {', '.join(KNOWN_VERSIONS)}"
        try:
            # Needs names of vLLM that nothing else here does.
            from autellix_backend.vllm_plugin.trial import why_unfit
        except ImportError as error:
            return f"{name}, and cannot be tried out: {error}"
        problem = why_unfit(self)
        if problem is not None:
            return f"{name}, and does not pass the self-test: {problem}"
        logger.warning("Autellix: %s; it has passed the self-test, so its calls are ordered", name)
        return None

    def _set_up(self, settings: PluginSettings) -> None:
        try:
            self.plugin = SchedulerPlugin(self, settings, lambda: self.clock())
            self.plugin.take_over(lambda action: self._guard(lambda _: action()))
        except Exception:  # noqa: BLE001 -- as in _guard
            self._fail()

    def facts(self) -> EngineFacts:
        """Return what gateways learn of this engine; may be called in another thread."""
        assert self.plugin is not None
        reports = self.plugin.tracker.reports
        dropped = reports.dropped_records if reports is not None else 0
        return replace(self.plugin.facts, is_degraded=self.is_degraded, dropped=dropped)

    # vLLM's hooks, in the order in which a request meets them.

    def add_request(self, request: Request) -> None:
        """Rank a request, then let vLLM queue it."""
        session = self.requests.get(request.request_id)
        if session is not None:
            # The next part of a streaming session, or its end.
            if not request.resumable:
                self._guard(lambda ours: ours.on_session_over(session))
            super().add_request(request)
            self._guard(lambda ours: ours.on_part_queued(session))
            return
        given = request.priority
        self._guard(lambda ours: ours.arrive(request))
        if self.is_degraded:
            request.priority = given
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Preempt the requests that must make room, and let vLLM fill the step."""
        started_s = self.clock()
        if self.plugin is None or not self.plugin.is_in_charge:
            output = super().schedule(*args, **kwargs)
        else:
            is_throttled = any(args) or any(kwargs.values())
            self._guard(lambda ours: ours.prepare_step(started_s, is_throttled=is_throttled))
            output = super().schedule(*args, **kwargs)
            # Also if our part has failed meanwhile.
            self._try(self.plugin.undoing.close)
            self._try(self.plugin.engine.order.end_rest)
        self._guard(lambda ours: ours.on_scheduled(output, started_s))
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        """Charge the executed step to its calls, then let vLLM process the tokens."""
        self._guard(lambda ours: ours.charge(scheduler_output, model_runner_output))
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._guard(lambda ours: ours.report())
        return outputs

    def set_pause_state(self, pause_state: Any) -> None:
        """Pause or resume. vLLM drains what runs; the requests that we preempted count as running, too."""
        super().set_pause_state(pause_state)
        self._guard(lambda ours: ours.drain())
        self._guard(lambda ours: ours.end_drain())

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Reset the prefix cache, as vLLM does to sleep and before it takes other weights as well."""
        is_reset = bool(super().reset_prefix_cache(*args, **kwargs))
        if is_reset:
            self._guard(lambda ours: ours.tracker.lose_contexts())
        return is_reset

    def shutdown(self) -> None:
        """Stop reporting and recording, and let vLLM end its own."""
        if self._own_order is not None:
            self._try(self._own_order.close)
        if self.plugin is not None and self.plugin.tracker.reports is not None:
            self._try(self.plugin.tracker.settle_left)
            self._try(self.plugin.tracker.reports.close)
        if self.plugin is not None and self.plugin.record is not None:
            self._try(self.plugin.record.close)
        super().shutdown()

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # Ours and vLLM's own preemptions both pass here.
        self._guard(lambda ours: ours.on_preempted(request))
        super()._preempt_request(request, *args, **kwargs)
        self._guard(lambda ours: ours.prices.on_preempted(request.request_id))

    def _handle_stopped_request(self, request: Request) -> bool:
        # A streaming session that has answered a part gives its slot back without a preemption.
        if request.resumable:
            self._guard(lambda ours: ours.on_part_answered(request))
        is_over = bool(super()._handle_stopped_request(request))
        if request.resumable and not is_over:
            self._guard(lambda ours: ours.on_part_queued(request))
        return is_over

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._guard(lambda ours: ours.close(request))
        freed = super()._free_request(request, *args, **kwargs)
        self._guard(lambda ours: ours.report_last())
        return freed

    def _guard(self, action: Callable[[SchedulerPlugin], None]) -> None:
        """Do our part of a hook; if it fails, log it once and leave the engine to vLLM alone."""
        if self.plugin is None or self.is_degraded:
            return
        try:
            if self.plugin.engine.order.fault is not None:
                self.plugin.engine.order.raise_fault()
            action(self.plugin)
        except Exception:  # noqa: BLE001 -- a fault of ours must not take down the engine's loop
            self._fail()

    def _try(self, action: Callable[[], Any]) -> None:
        """Do something that must be done whether or not our part has failed."""
        try:
            action()
        except Exception:  # noqa: BLE001 -- as in _guard
            self._fail()

    def _fail(self) -> None:
        """Log the error that is being handled, and leave the engine to vLLM from now on."""
        logger.exception(_FAILED)
        if self.is_degraded:
            return
        self.is_degraded = True
        if self.plugin is not None and self.plugin.is_in_charge:
            self._try(self.plugin.engine.order.let_go)


class AsyncProgramScheduler(ProgramSchedulerMixin, AsyncScheduler):
    """Program-aware scheduling with async scheduling on."""


class SyncProgramScheduler(ProgramSchedulerMixin, Scheduler):
    """Program-aware scheduling with async scheduling off."""
