"""Play programs on vLLM's own scheduler, on AgentInfer's and on ours, each as it is, in the time of a model.

    pip download --no-deps agentinfer && unzip agentinfer-*.whl -d AGENTINFER
    python benchmarks/stepped_peers.py AGENTINFER [--workloads tools coding] [--draws 10] [--programs 32]
    python benchmarks/stepped_peers.py AGENTINFER --workloads recorded --data DATA --model llama3.1-8b-h100

As in stepped_policies.py the scheduler classes and vLLM's KV cache manager are real, a script writes the
tokens, and a step takes its time in the engine model: no noise of the machine is in the figures. AgentInfer
reads the time of the model, learns which program a call belongs to, and is told each end. It runs with its
own constants, those of an unnamed GPU, and with those of the engine model. `--systems` may name
`vLLM, host memory` and `autellix, host memory`, too.

Each draw has programs and arrivals of its own, the same for all. Each run is a line of OUT; runs that are
there are not repeated. The table comes at the end: means of plain vLLM, and of others the shares of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import AGENTINFER, AGENTINFER_OWN, agentinfer_settings
from peers_live import DIRECT, DIRECT_HOST, OURS, OURS_HOST, PASSES, Run, read_runs, table
from stepped_policies import (
    CACHED,
    GENERATED,
    MAKESPAN,
    RECORDED,
    Draw,
    Played,
    figures_of,
    generated_draws,
    recorded_draws,
    scheduler_of,
)
from tests.vllm_plugin import scripted_engine
from tests.vllm_plugin.scripted_engine import (
    Client,
    ScriptedEngine,
    block_hasher,
    make_scheduler,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from autellix_backend.settings.scheduler import scheduler_to_mapping
from autellix_lab.demo.parts import SCARCE
from autellix_lab.sim.engine import LEAST_WAIT_S
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import PRESETS

SYSTEMS = (DIRECT, AGENTINFER_OWN, AGENTINFER, OURS)
WITH_HOST = (DIRECT_HOST, OURS_HOST)
"""With our connector, and room for all blocks; the first in vLLM's own order."""
HOST_BLOCK_S = 0.00015
"""Of the copy of a block: a load takes a thirteenth of a prefill, as on the demo's engine."""
TITLES = {"latency_s mean": "mean s", "latency_s p95": "p95 s", "latency_s p99": "p99 s", MAKESPAN: "last s"}
START_S = 1000.0
"""Of AgentInfer's clock: to some of its conditions zero is no time."""


def settings_of(model: EngineModel) -> dict[str, Any]:
    """Return AgentInfer's settings for an engine, with a check for each 20 steps."""
    prefill = {
        "intercept_seconds": model.step_s + model.call_s,
        "linear_seconds_per_1k_tokens": 1e3 * model.prefill_s,
        "quadratic_seconds_per_1k_tokens_squared": 1e6 * model.prefill_context_s / 2,
    }
    decode = {
        "fixed_step_seconds": model.step_s,
        "batch_step_seconds_per_request": model.decode_s,
        "context_step_seconds_per_token": model.context_s,
    }
    return agentinfer_settings(prefill, decode, 20 * model.step_s)


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


def play(system: str, workload: str, draw: Draw, directory: Path) -> Run:
    """Play a draw's programs on a system; return the figures."""
    config = scheduler_of("boost" if system in (OURS, OURS_HOST) else "fcfs", workload)
    engine: ScriptedEngine
    if system in (OURS, *WITH_HOST):
        model = draw.model
        if system != OURS:
            model = dataclasses.replace(model, resume="host", swap_block_s=HOST_BLOCK_S)
        engine = ScriptedEngine(directory, model, scheduler_to_mapping(config), is_async=False)
    else:
        settings = {DIRECT: None, AGENTINFER_OWN: {}, AGENTINFER: settings_of(draw.model)}
        engine = OtherEngine(directory, draw.model, settings[system])
    Client(engine, config, has_hints=False).play(list(zip(draw.arrivals_s, draw.programs, strict=True)))
    found = figures_of(Played(engine.log, engine.cached_tokens), draw)
    figures = {title: found[name] for name, title in TITLES.items()}
    return figures | {"cached": found[CACHED], PASSES: engine.steps, "empty": engine.empty_steps}


def draws(workload: str, args: argparse.Namespace) -> Iterator[Draw]:
    """Yield a draw for each seed, with programs of its own."""
    for seed in range(args.seed, args.seed + args.draws):
        one = argparse.Namespace(**vars(args) | {"seed": seed, "draws": 1})
        yield from recorded_draws(one) if workload == RECORDED else generated_draws(workload, one)


def main() -> None:
    """Play what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("agentinfer", type=Path, help="the unpacked wheel")
    add("--systems", nargs="+", choices=(*SYSTEMS, *WITH_HOST), default=SYSTEMS)
    add("--workloads", nargs="+", choices=(*GENERATED, RECORDED), default=list(SCARCE))
    add("--draws", type=int, default=10)
    add("--programs", type=int, default=32)
    add("--rho", type=float, default=1.5, help="offered load of chat and mixed")
    add("--kv-rho", type=float, help="of coding and tools, over ample memory (default: the demo's)")
    add("--data", type=Path, help="folder whose public/ has the recorded sessions")
    add("--model", choices=tuple(PRESETS), default="llama3.1-70b-4xa100", help="engine of recorded")
    add("--host-gb", type=float, default=0.0, help=argparse.SUPPRESS)
    add("--rate", type=float, default=0.01, help="arrivals per second of recorded")
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=Path("stepped-peers.jsonl"))
    args = parser.parse_args()
    sys.path.append(str(args.agentinfer))
    runs = read_runs(args.out)
    for workload in args.workloads:
        key = {"workload": workload, "programs": args.programs}
        if workload == RECORDED:
            key |= {"model": args.model, "rate": args.rate}
        for number, draw in enumerate(draws(workload, args), args.seed):
            for system in args.systems:
                head = key | {"round": number, "system": system}
                if not any(head.items() <= run.items() for run in runs):
                    with tempfile.TemporaryDirectory() as folder:
                        scripted_engine.write_model_config(Path(folder))
                        run = head | play(system, workload, draw, Path(folder))
                    runs.append(run)
                    with args.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(run) + "\n")
        own = [run for run in runs if key.items() <= run.items()]
        print(f"\n{key}\n\n{table(own, args.systems, (*TITLES.values(), PASSES))}", flush=True)


if __name__ == "__main__":
    main()
