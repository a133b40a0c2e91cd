"""Plays tool programs on vLLM's CPU engine with scarce KV memory, with and without blocks in host memory.

    python benchmarks/host_tier_live.py [--programs 12] [--rounds 1]

vLLM runs in this process, stepped by hand. Programs arrive some steps apart, more of them than memory holds,
and make each call when the one before has ended. The schedulers take turns. Reported: program latency in
seconds and in steps, and where prompts came from. Seconds are CPU time of the process: its engine has
one thread, so they are seconds of an idle machine, and comparable beside other work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_LOGGING_LEVEL="ERROR",
    # Pinned threads that wait for each other are slow beside anything else on the machine.
    OMP_NUM_THREADS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
)

from stepped_engine import MAX_CONTEXT_TOKENS, WORDS, SteppedEngine, engine_of

from autellix_lab.demo.model import build_demo_model, demo_model_directory
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import ProgramTrace
from autellix_wire import engine_args

CASES = {"fcfs": ("fcfs", False), "fcfs, host": ("fcfs", True), "default": ("boost", False)}
CASES["default, host"] = ("boost", True)
HOST_GIB = 1.0
APART_STEPS = 6
MAX_STEPS = 200_000


class PlayedProgram:
    """A program on the engine, and the words of its prompts."""

    def __init__(self, trace: ProgramTrace, number: int) -> None:
        self.trace = trace
        self.program_id = str(number)
        self.next_call = 0
        self.began = (0, 0.0)
        prefix = system_prefix(trace)
        shared = 0 if prefix is None else prefix.length
        longest = max(call.prefill_tokens for call in trace.calls)
        self.words = random.Random(prefix.key if prefix else self.program_id).choices(WORDS, k=shared)
        self.words += random.Random(f"own:{number}").choices(WORDS, k=max(0, longest - shared))

    def call(self, engine: SteppedEngine) -> str:
        """Make its next call."""
        call = self.trace.calls[self.next_call]
        self.next_call += 1
        arguments = {engine_args.PROGRAM: self.program_id, engine_args.LAST: int(self.is_over)}
        return engine.add(self.words[: call.prefill_tokens], max(1, call.decode_tokens), arguments)[0]

    @property
    def is_over(self) -> bool:
        """Whether it has no further call."""
        return self.next_call == len(self.trace.calls)


def play(engine: SteppedEngine, traces: Sequence[ProgramTrace]) -> dict[str, Any]:
    """Play all programs to their end."""
    pending = [PlayedProgram(trace, number) for number, trace in enumerate(traces)]
    open_calls: dict[str, PlayedProgram] = {}
    steps: list[int] = []
    seconds: list[float] = []
    step, started_s = 0, time.process_time()
    while pending or open_calls:
        if pending and step >= APART_STEPS * int(pending[0].program_id):
            program = pending.pop(0)
            program.began = (step, time.process_time())
            open_calls[program.call(engine)] = program
        for name in engine.step():
            program = open_calls.pop(name)
            if program.is_over:
                steps.append(step - program.began[0])
                seconds.append(time.process_time() - program.began[1])
            else:
                open_calls[program.call(engine)] = program
        step += 1
        if step > MAX_STEPS:
            raise RuntimeError(f"no end after {step} steps")
    prompts = engine.prompts
    found = {name: prompts[name] / prompts["prompt"] for name in ("cached", "loaded")}
    ahead = engine.scheduler.connector.manager.tally["loads_ahead",] if engine.has_host_memory else 0
    return {
        "mean_s": statistics.fmean(seconds),
        "last_s": max(seconds),
        "mean_steps": statistics.fmean(steps),
        "total_s": time.process_time() - started_s,
        "steps": step,
        **found,
        "computed": 1 - sum(found.values()),
        "loads": engine.moved("load")[0],
        "loads_ahead": ahead,
    }


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--kv-blocks", type=int, default=130)
    parser.add_argument("--length-scale", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=lambda text: text.split(";"), default=list(CASES))
    arguments = parser.parse_args()
    traces = [
        fit_program(trace, length_scale=arguments.length_scale, max_context_tokens=MAX_CONTEXT_TOKENS - 96)
        for trace in generate_programs("tools", arguments.programs, arguments.seed)
    ]
    contexts = sum(max(call.context_tokens for call in trace.calls) for trace in traces)
    memory = 32 * (arguments.kv_blocks - 1)
    print(f"contexts of all programs over memory: {contexts / memory:.1f}, shared prefixes counted each time")
    model = build_demo_model(demo_model_directory(), 0)
    runs: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        for case in arguments.cases if number % 2 == 0 else reversed(arguments.cases):
            policy, has_host = CASES[case]
            settings = {"policy": policy, "slots": arguments.slots, "kv_blocks": arguments.kv_blocks}
            with engine_of(
                model, HOST_GIB if has_host else None, **settings, has_prefix_cache=True
            ) as engine:
                run = {"round": number, "case": case, **play(engine, traces)}
            runs.append(run)
            print(
                json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in run.items()}),
                flush=True,
            )
    base = [run["mean_s"] for run in runs if run["case"] == "fcfs"]
    for case in arguments.cases if base else ():
        mean = statistics.fmean(run["mean_s"] for run in runs if run["case"] == case)
        print(f"{case}: {mean / statistics.fmean(base):.2f} of fcfs in mean seconds")


if __name__ == "__main__":
    main()
