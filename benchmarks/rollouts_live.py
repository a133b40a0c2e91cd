"""Play the steps of `rollout_groups.py` on real engines: plain vLLM, and ours with and without groups.

    python benchmarks/rollouts_live.py --out DIR                      scarce KV memory
    python benchmarks/rollouts_live.py --out DIR --kv-blocks 2500     ample

The lengths and gaps of the rollouts with tools are scaled to the demo's model. Prints for each seed the time
of the step, the mean time of a group's last rollout and that of a rollout: in seconds, and in forward passes
of the engine, of which a busy machine makes no more. The three take turns.
"""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from dataclasses import replace
from statistics import fmean

from others.rig import OURS, PLAIN, System, arguments, counters_of, systems
from rollout_groups import SHAPES, SIZE, Times, rollouts

from autellix_lab.bench.replay import ReplayJob, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_lab.workload.fit import GapRule, fit_program
from autellix_lab.workload.trace import ProgramTrace

CLIENT = """
import asyncio, autellix, json, sys
from autellix_lab.bench.client import run_job
asyncio.run(run_job(json.load(sys.stdin), lambda group: autellix.program("rollout", group={group})))
"""
"""The load generator, for which the source of a program is its group."""
STEPS = re.compile(r"^vllm:iteration_tokens_total_count\S* (\S+)$", re.MULTILINE)
GROUPS = f"{OURS}, groups"


def rollouts_of(seed: int, scale: float) -> list[ProgramTrace]:
    """Return the rollouts of one step, each with its group as its source."""
    gap_rule = GapRule(60.0, scale)
    return [
        replace(
            fit_program(program, length_scale=scale, max_context_tokens=2048, gap_rule=gap_rule),
            source=program.group,
        )
        for program in rollouts(SHAPES["tools"], seed)
    ]


def steps_of(system: System) -> int:
    """Return the forward passes that a system's engine has made since it started."""
    with urllib.request.urlopen(f"{system.engine_url}/metrics", timeout=30) as answer:
        return round(sum(float(count) for count in STEPS.findall(answer.read().decode())))


def play(system: System, programs: list[ProgramTrace], salt: str, *, has_groups: bool) -> tuple[Times, Times]:
    """Play one step, whose rollouts arrive at once; return its times in seconds and in forward passes."""
    job = ReplayJob(
        base_url=system.url,
        model=DEMO_MODEL_NAME,
        programs=programs,
        arrivals_s=[0.0] * len(programs),
        salt=salt,
    )
    began = steps_of(system)
    calls = Counter(program.program_id for program in programs for _ in program.calls)
    rollouts_left = Counter(program.group for program in programs)
    ends: dict[str, list[tuple[float, float]]] = {"rollout": [], "group": []}

    def on_result(result: CallResult) -> None:
        if result.error is not None:
            raise RuntimeError(f"{salt}: a call was lost: {result.error}")
        calls[result.program] -= 1
        if not calls[result.program]:
            end = (result.finish_s, steps_of(system) - began)
            ends["rollout"].append(end)
            rollouts_left[result.program.partition(".")[0]] -= 1
            if not rollouts_left[result.program.partition(".")[0]]:
                ends["group"].append(end)

    replay(job, on_result, client_code=CLIENT.format(group="group" if has_groups else "None"))
    seconds, steps = (
        Times(max(group), fmean(group), fmean(rollout))
        for group, rollout in zip(
            zip(*ends["group"], strict=True), zip(*ends["rollout"], strict=True), strict=True
        )
    )
    return seconds, steps


def main() -> None:
    """Play all steps and print their times."""
    parser = arguments(__doc__, kv_blocks=160, slots=16)
    parser.add_argument("--scale", type=float, default=0.15, help="of lengths and gaps")
    args = parser.parse_args()
    with systems(args.out, args.kv_blocks, args.slots) as (plain, ours):
        cases = [(PLAIN, plain, False), (OURS, ours, False), (GROUPS, ours, True)]
        for system in (plain, ours):
            play(system, rollouts_of(0, args.scale)[:SIZE], "warm-up", has_groups=False)
        for turn, seed in enumerate(args.seeds):
            programs = rollouts_of(seed, args.scale)
            found: dict[str, tuple[Times, Times]] = {}
            for name, system, has_groups in cases[turn % 3 :] + cases[: turn % 3]:
                before = counters_of(system)
                found[name] = play(system, programs, f"{seed}:{name}", has_groups=has_groups)
                counted = {key: value - before[key] for key, value in counters_of(system).items()}
                print(f"seed {seed}, {name}: {found[name]}, {counted}", flush=True)
            for name in (OURS, GROUPS):
                for unit, own, base in zip(("s", "steps"), found[name], found[PLAIN], strict=True):
                    ratios = (f"{one / other:.2f}" for one, other in zip(own, base, strict=True))
                    print(f"seed {seed}, {name}, to {PLAIN}, {unit}:", *ratios, flush=True)


if __name__ == "__main__":
    main()
