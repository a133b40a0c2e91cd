"""vLLM's scheduler, or AgentInfer's on it, stepped in virtual time as `scripted_engine.py` steps ours."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.vllm_plugin.scripted_engine import ScriptedEngine, block_hasher, make_scheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from autellix_lab.sim.engine import LEAST_WAIT_S
from autellix_lab.sim.model import EngineModel

START_S = 1000.0
"""Of AgentInfer's clock: to some of its conditions zero is no time."""


class OtherEngine(ScriptedEngine):
    """The engine with AgentInfer's scheduler, or without settings with plain vLLM's."""

    def __init__(self, directory: Path, model: EngineModel, settings: dict[str, Any] | None) -> None:
        self.model, self.now = model, 0.0
        self.steps = self.empty_steps = self.cached_tokens = 0
        self.log, self.first_token_s = [], {}
        self._writing, self._answers = set(), {}
        self._transfers = None
        self._hasher = block_hasher(model)
        scheduler_class = Scheduler if settings is None else agentinfer_scheduler(lambda: START_S + self.now)
        config = {"agentcache": settings or {}}
        self._scheduler = make_scheduler(scheduler_class, directory, model, config, is_async=False)

    def submit(self, call_id: str, prompt: list[int], answer: list[int], extra_args: dict[str, Any]) -> None:
        """Add a call that arrives now, and name its program."""
        self.log.append(("arrive", call_id, self.now))
        context = json.dumps({"program_id": extra_args["autellix_program"]})
        super().submit(call_id, prompt, answer, {"agentic_context": context})

    def end_program(self, program_id: str) -> None:
        """Tell AgentInfer that a program has ended, as its middleware does."""
        if hasattr(self._scheduler, "_agentcache"):
            lifecycle = importlib.import_module("agentinfer.scheduling.lifecycle").ProgramLifecycle
            self._scheduler._agentcache.controller.on_response_completion(program_id, lifecycle.TERMINAL)

    def begin(self) -> tuple[Any, float]:
        """Schedule a step; return it and the time at which it ends."""
        output = self._scheduler.schedule()
        self.cached_tokens += sum(call.num_computed_tokens for call in output.scheduled_new_reqs)
        if output.num_scheduled_tokens:
            return output, self.now + self._step_time_s(output)
        self.empty_steps += 1
        # An engine that holds all its calls back looks again and again.
        return output, self.now + LEAST_WAIT_S

    def end(self, output: Any) -> list[Any]:
        """Give every call whose context is complete a token; return those that finished."""
        ids = list(output.num_scheduled_tokens)
        sampled = [self._sample(self._scheduler.requests[call_id]) for call_id in ids]
        writing = {call_id for call_id, tokens in zip(ids, sampled, strict=True) if tokens}
        self._writing |= writing
        places = {call_id: place for place, call_id in enumerate(ids)}
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index=places, sampled_token_ids=sampled)
        self._scheduler.update_from_output(output, result)
        self.steps += bool(ids)
        finished = [call_id for call_id in ids if call_id not in self._scheduler.requests]
        self._writing -= set(finished)
        self.log += [("finish", call_id, self.now) for call_id in finished]
        return [SimpleNamespace(call_id=call_id, service_s=0.0) for call_id in finished]


def agentinfer_scheduler(now: Callable[[], float]) -> type[Any]:
    """Return AgentInfer's scheduler class, with a clock of ours."""
    found = importlib.import_module("agentinfer.agentcache.core.scheduler")
    clock = SimpleNamespace(monotonic=now, time=now)
    for name, module in list(sys.modules.items()):
        if name.startswith("agentinfer.") and hasattr(module, "time"):
            setattr(module, "time", clock)  # noqa: B010 -- of a module of others
    scheduler_class: type[Any] = found.AgentCacheSyncSchedulerBridge
    return scheduler_class
