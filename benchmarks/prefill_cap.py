"""Measure what a cold prompt costs the short calls beside it, with and without vLLM's cap of a prefill.

    python benchmarks/prefill_cap.py DATA [--model llama3.1-8b-h100] [--chats 300] [--chat-rate 1.5]
                                          [--colds 30] [--cold-rate 0.12] [--draws 3]

vLLM serves running calls in the order in which it admitted them, so a cold prompt takes the whole token
budget of each step until it is read, and short calls that arrive wait for their first token. vLLM's option
`--long-prefill-token-threshold` caps what one prompt gets of a step while others are there. Recorded chats
(DATA/public has them) and sessions whose first prompt has 20,000 to 100,000 tokens share an engine with ample
slots and memory; vLLM's real scheduler runs under a model of its step times, as in stepped_policies.py.

Prints the mean and p95 of the time to the first token (of chats, of the sessions' later calls, and of cold
prompts) and of the time of whole programs, each as a ratio to the default without a cap.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepped_policies import LONG_BLOCK_TOKENS, Draw, SteppedScheduler, with_block_tokens

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import load_programs
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.trace import CallTrace, ProgramTrace

COLD = "cold"
COLD_TOKENS = (20_000, 100_000)
COLD_CALLS = (6, 14)
ADDED_TOKENS = (100, 2_500)
OUTPUT_TOKENS = (60, 400)
MEAN_GAP_S = 6.0
PLENTY_OF_BLOCKS = 40_000
CASES = (("boost", 0), ("boost", 2), ("boost", 4), ("fcfs", 0), ("fcfs", 4))
"""Policies, and the part of a step's tokens that a prefill may have, 0 for all; the first is the base."""

Figures = dict[str, tuple[float, float]]


def cold_session(number: int, rng: random.Random) -> ProgramTrace:
    """Return a session whose first prompt is long, and whose other calls each add to it."""
    calls: list[CallTrace] = []
    prompt, shared = rng.randrange(*COLD_TOKENS), 0
    for call_id in range(rng.randrange(*COLD_CALLS)):
        output = rng.randrange(*OUTPUT_TOKENS)
        calls.append(
            CallTrace(
                id=call_id,
                parents=(call_id - 1,) if call_id else (),
                thread="0",
                prefill_tokens=prompt,
                decode_tokens=output,
                shared_prefix_tokens=shared,
                prefix_from=call_id - 1 if call_id else None,
                gap_before_s=rng.expovariate(1 / MEAN_GAP_S) if call_id else 0.0,
            )
        )
        shared = prompt + output
        prompt = shared + rng.randrange(*ADDED_TOKENS)
    return ProgramTrace(source=COLD, program_id=f"{COLD}-{number}", calls=tuple(calls))


def draw_of(args: argparse.Namespace, chats: Sequence[ProgramTrace], seed: int) -> Draw:
    """Return chats and cold sessions with their arrivals."""
    rng = random.Random(seed)
    arrivals = [
        *zip(poisson_arrivals(args.chats, args.chat_rate, seed), rng.sample(chats, args.chats), strict=True),
        *(
            (at_s, cold_session(number, rng))
            for number, at_s in enumerate(poisson_arrivals(args.colds, args.cold_rate, seed + 1))
        ),
    ]
    arrivals.sort(key=lambda pair: pair[0])
    model = with_block_tokens(PRESETS[args.model], LONG_BLOCK_TOKENS, blocks=PLENTY_OF_BLOCKS)
    return Draw([program for _, program in arrivals], [at_s for at_s, _ in arrivals], model)


def figures_of(report: Mapping[str, Any], draw: Draw) -> Figures:
    """Return the mean and p95 of times to first tokens and of programs, in seconds, by kind."""
    times: dict[str, list[float]] = {}
    ends_s: dict[int, float] = {}
    arrivals_s = {call_id: at for event, call_id, at in report["log"] if event == "arrive"}
    for event, call_id, at in report["log"]:
        if event != "finish":
            continue
        number, call = map(int, call_id.split("."))
        kind = "chats" if draw.programs[number].source != COLD else "later calls" if call else "cold prompts"
        times.setdefault(kind, []).append(report["first_token_s"][call_id] - arrivals_s[call_id])
        ends_s[number] = max(ends_s.get(number, 0.0), at)
    for number, end_s in ends_s.items():
        kind = "cold sessions" if draw.programs[number].source == COLD else "whole chats"
        times.setdefault(kind, []).append(end_s - draw.arrivals_s[number])
    return {
        kind: (statistics.mean(values), sorted(values)[int(0.95 * len(values))])
        for kind, values in times.items()
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder whose public/ has the recorded chats")
    parser.add_argument("--model", choices=tuple(PRESETS), default="llama3.1-8b-h100")
    parser.add_argument("--chats", type=int, default=300)
    parser.add_argument("--chat-rate", type=float, default=1.5, help="arrivals per second")
    parser.add_argument("--colds", type=int, default=30, help="sessions with a cold prompt")
    parser.add_argument("--cold-rate", type=float, default=0.12, help="arrivals per second")
    parser.add_argument("--draws", type=int, default=3)
    args = parser.parse_args()
    chats = load_programs(args.data, "chat")
    found: dict[tuple[str, int], list[Figures]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as directory:
        scheduler = SteppedScheduler(Path(directory))
        for seed in range(args.draws):
            draw = draw_of(args, chats, seed)
            for policy, part in CASES:
                cap = draw.model.token_budget // part if part else 0
                report = scheduler.report(
                    draw, SchedulerConfig(policy=policy, admission="auto"), long_prefill_tokens=cap
                )
                found[policy, part].append(figures_of(report, draw))
                print(f"draw {seed}, {policy}, cap {cap}", found[policy, part][-1], file=sys.stderr)
        scheduler.close()
    base = found[CASES[0]]
    for (policy, part), draws in found.items():
        cap = f"budget / {part}" if part else "none"
        print(f"\n{policy}, cap {cap}: mean and p95, and their ratios to the first case")
        for kind in base[0]:
            pairs = [(one[kind], first[kind]) for one, first in zip(draws, base, strict=True)]
            for at, name in enumerate(("mean", "p95")):
                seconds = statistics.mean(one[at] for one, _ in pairs)
                ratio = statistics.mean(one[at] / first[at] for one, first in pairs)
                print(f"  {kind:<14} {name:<5} {seconds:7.2f} s  {ratio:.2f}")


if __name__ == "__main__":
    main()
