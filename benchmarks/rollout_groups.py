"""Simulate the training step of a trainer that waits for groups of rollouts, with and without their groups.

    python benchmarks/rollout_groups.py [--seeds 10]

16 groups of 8 rollouts arrive at once, on an 8B model on an A100 with 32 slots. The rollouts of a group share
a prompt of their own. Prints ratios to our default without groups, by the share of the KV memory: the time of
the step, the mean time of a group's last rollout, and the mean time of a rollout.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.results import ProgramRecord
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.heavy_tail import HeavyTail
from autellix_lab.workload.trace import CallTrace, ProgramTrace

GROUPS, SIZE = 16, 8
SLOTS = 32
KV_SHARES = (1.0, 0.25, 0.125, 0.0625)
BASE = "default"


class Shape(NamedTuple):
    """The statistics of a kind of rollouts, in tokens; all of them are our assumption."""

    prompt: HeavyTail
    calls: HeavyTail
    observation: HeavyTail
    """New tokens of a later call."""
    answer: HeavyTail
    tool_ms: HeavyTail


SHAPES = {
    "tools": Shape(
        HeavyTail(1500, 6000, 0.8),
        HeavyTail(6, 24, 0.7),
        HeavyTail(150, 1500, 0.8),
        HeavyTail(150, 1500, 0.9),
        HeavyTail(1000, 20_000, 1.0),
    ),
    "one call": Shape(
        HeavyTail(400, 2000, 0.6),
        HeavyTail(1, 1, 0.1),
        HeavyTail(100, 500, 0.5),
        HeavyTail(900, 8000, 0.9),
        HeavyTail(1000, 20_000, 1.0),
    ),
}
DIFFICULTY_SIGMA = 0.4
"""The spread between groups: of the calls of a rollout, or of the answer of one with a single call."""


class Times(NamedTuple):
    """The times (s) of one step."""

    step_s: float
    group_s: float
    """When the last rollout of a group ended, over all groups."""
    rollout_s: float


def rollouts(shape: Shape, seed: int, *, groups: int = GROUPS) -> list[ProgramTrace]:
    """Return the rollouts of one step, group by group, in which no two groups have prompts of one length."""
    programs: list[ProgramTrace] = []
    lengths: set[int] = set()
    for group in range(groups):
        rng = random.Random(f"{seed}:{group}")
        prompt = shape.prompt.draw(rng)
        while prompt in lengths:
            prompt += 1
        lengths.add(prompt)
        difficulty = rng.lognormvariate(0, DIFFICULTY_SIGMA)
        for member in range(SIZE):
            calls = _calls(shape, prompt, difficulty, random.Random(f"{seed}:{group}:{member}"))
            programs.append(
                ProgramTrace(
                    source="rollout",
                    program_id=f"{group}.{member}",
                    calls=calls,
                    group=str(group),
                    system_prefix_tokens=prompt,
                )
            )
    return programs


def _calls(shape: Shape, prompt: int, difficulty: float, rng: random.Random) -> tuple[CallTrace, ...]:
    count = max(1, min(shape.calls.maximum, round(shape.calls.draw(rng) * difficulty)))
    longer = difficulty if shape.calls.maximum == 1 else 1.0
    calls: list[CallTrace] = []
    for number in range(count):
        shared = calls[-1].context_tokens if calls else 0
        calls.append(
            CallTrace(
                id=number,
                parents=(number - 1,) if number else (),
                thread="main",
                prefill_tokens=shared + (shape.observation.draw(rng) if number else prompt),
                decode_tokens=max(1, round(shape.answer.draw(rng) * longer)),
                shared_prefix_tokens=shared,
                prefix_from=number - 1 if number else None,
                gap_before_s=shape.tool_ms.draw(rng) / 1000 if number else None,
            )
        )
    return tuple(calls)


def times_of(records: Iterable[ProgramRecord]) -> Times:
    """Return the times of a step by the records of its rollouts."""
    last_s: dict[str, float] = {}
    latencies_s: list[float] = []
    for record in records:
        group = record.program_id.partition(".")[0]
        last_s[group] = max(last_s.get(group, 0.0), record.finish_s)
        latencies_s.append(record.latency_s)
    return Times(max(last_s.values()), fmean(last_s.values()), fmean(latencies_s))


def cases(kv_share: float) -> dict[str, SimSettings]:
    """Return the schedulers that are compared."""
    model = replace(PRESETS["llama3.1-8b-a100"], max_num_seqs=SLOTS).with_kv(kv_share)
    ours = SimSettings(model=model, scheduler=SchedulerConfig())
    plain = SimSettings(model=model, scheduler=SchedulerConfig(policy="fcfs", admission="none"))
    return {BASE: ours, "vLLM": plain, "groups": replace(ours, has_groups=True)}


def rows(shape: str, kv_share: float, found: dict[str, Sequence[Times]]) -> list[tuple[str, ...]]:
    """Return a table's rows: the seconds of our default, and the others' ratios with their extremes."""
    base = found[BASE]
    place = (shape, f"{kv_share:g}")
    table = [(*place, BASE, *(f"{fmean(column):.0f} s" for column in zip(*base, strict=True)))]
    for case, times in found.items():
        if case != BASE:
            ratios = [[one / other for one, other in zip(*pair, strict=True)] for pair in _pairs(times, base)]
            cells = (
                f"{fmean(column):.2f} ({min(column):.2f} to {max(column):.2f})"
                for column in zip(*ratios, strict=True)
            )
            table.append((*place, case, *cells))
    return table


def _pairs(times: Sequence[Times], base: Sequence[Times]) -> Iterable[tuple[Times, Times]]:
    return zip(times, base, strict=True)


def main() -> None:
    """Simulate all shapes and shares, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    table: list[tuple[str, ...]] = []
    for name, shape in SHAPES.items():
        for kv_share in KV_SHARES:
            found: dict[str, list[Times]] = {}
            for seed in seeds:
                arrivals = [(0.0, program) for program in rollouts(shape, seed)]
                for case, settings in cases(kv_share).items():
                    found.setdefault(case, []).append(times_of(simulate(arrivals, settings).programs))
            table += rows(name, kv_share, dict(found))
    header = ("rollouts", "KV memory", "scheduler", "step", "last of a group", "rollout")
    print("\n".join(markdown_table(header, table)))


if __name__ == "__main__":
    main()
