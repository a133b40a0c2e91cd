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
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
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
    add_load_options,
    figures_of,
    generated_draws,
    recorded_draws,
    scheduler_of,
)

from autellix_backend.settings.scheduler import scheduler_to_mapping
from autellix_lab.demo.parts import SCARCE
from autellix_lab.sim.model import EngineModel

SYSTEMS = (DIRECT, AGENTINFER_OWN, AGENTINFER, OURS)
WITH_HOST = (DIRECT_HOST, OURS_HOST)
"""With our connector, and room for all blocks; the first in vLLM's own order."""
HOST_BLOCK_S = 0.00015
"""Of the copy of a block: a load takes a thirteenth of a prefill, as on the demo's engine."""
TITLES = {"latency_s mean": "mean s", "latency_s p95": "p95 s", "latency_s p99": "p99 s", MAKESPAN: "last s"}


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


def play(system: str, workload: str, draw: Draw, directory: Path) -> Run:
    """Play a draw's programs on a system; return the figures."""
    from stepped_other import OtherEngine
    from tests.vllm_plugin.scripted_engine import Client, ScriptedEngine, write_model_config

    write_model_config(directory)
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
    add_load_options(parser)
    add("--host-gb", type=float, default=0.0, help=argparse.SUPPRESS)
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
                        run = head | play(system, workload, draw, Path(folder))
                    runs.append(run)
                    with args.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(run) + "\n")
        own = [run for run in runs if key.items() <= run.items()]
        print(f"\n{key}\n\n{table(own, args.systems, (*TITLES.values(), PASSES))}", flush=True)


if __name__ == "__main__":
    main()
