"""Drain a real engine under load, and have one join late: the programs that move, and what it costs them.

    python benchmarks/moves_live.py [--replicas 2] [--seeds 1 2]

Programs with tools, growing contexts and gaps run on engines behind one gateway. Each seed has four runs:

    calm    nothing happens
    drain   the first engine is drained once a third of the calls are answered
    stay    the last engine joins once a quarter of the calls are answered; programs may not move
    move    the same; the balancer may move them

An engine counts as empty when its last call has ended. A call recomputes where it finds less of its program's
last prompt in the prefix cache, by the engine's count, than all but two blocks. Wants an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import uvloop
from balance_live import BLOCK_TOKENS, gateway, running, settings_of
from rollout_groups import SHAPES, SIZE, rollouts

from autellix_backend.core.balance import DEFAULT_BALANCER, bounded
from autellix_backend.engines.base import Engine
from autellix_backend.engines.factory import make_engines
from autellix_backend.observe.settled_call import SettledCall
from autellix_lab.bench.metrics import summarise
from autellix_lab.bench.replay import ReplayJob, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_lab.workload.fit import GapRule, fit_program
from autellix_lab.workload.trace import ProgramTrace

STAYS = 1.0
"""A margin with which programs leave an engine only when it drains."""
MOVES = bounded.MARGIN
RUNS = {"calm": (None, MOVES), "drain": ("drain", MOVES), "stay": ("join", STAYS), "move": ("join", MOVES)}
"""What happens, and the balancer's margin."""

FIXED = {"engine": [], "model": "demo", "max_context": 2048, "threshold_tokens": 256}
"""Options of `balance_live.py`."""


@dataclass(slots=True)
class Watch:
    """Follows one run, and drains an engine or has one join in it."""

    url: str
    event: str | None
    engine: str
    after_calls: int
    engines: dict[str, str] = field(default_factory=dict)
    """The engine of each call."""
    ended_s: float = 0.0
    """When the latest call on the engine ended."""
    event_s: float = 0.0
    calls: int = 0

    def on_settled(self, call: SettledCall) -> None:
        """Keep where a call ran."""
        self.engines[call.receipt.call_id] = call.engine
        if call.engine == self.engine:
            self.ended_s = time.monotonic()

    def on_result(self, _result: CallResult) -> None:
        """Count an answer."""
        self.calls += 1
        if self.calls == self.after_calls and self.event is not None:
            self.event_s = time.monotonic()
            self.ask("drain" if self.event == "drain" else "undrain")

    def ask(self, action: str) -> None:
        """Have the gateway drain or undrain the engine."""
        path = f"{self.url}/autellix/v1/engines/{self.engine}/{action}"
        urllib.request.urlopen(urllib.request.Request(path, method="POST"), timeout=30).close()


def programs_of(count: int, seed: int, scale: float) -> list[ProgramTrace]:
    """Return programs that share no prompt."""
    found = rollouts(SHAPES["tools"], seed, groups=-(-count // SIZE))[:count]
    return [
        fit_program(
            replace(program, system_prefix_tokens=None),
            length_scale=scale,
            max_context_tokens=2048,
            gap_rule=GapRule(5.0),
        )
        for program in found
    ]


async def play(
    engines: Sequence[Engine], args: argparse.Namespace, programs: Sequence[ProgramTrace], run: str, salt: str
) -> dict[str, float]:
    """Play one run; return its figures."""
    event, bounded.MARGIN = RUNS[run]
    period_s = args.joining_period_s if event == "join" else args.period_s
    arrivals_s = [period_s * place for place in range(len(programs))]
    share = 1 / 4 if event == "join" else 1 / 3
    name = engines[-1 if event == "join" else 0].name
    watch = Watch("", event, name, int(share * sum(len(program.calls) for program in programs)))
    async with gateway(engines, settings_of(args, DEFAULT_BALANCER), watch.on_settled) as watch.url:
        if event == "join":
            await asyncio.to_thread(watch.ask, "drain")
        job = ReplayJob(
            base_url=watch.url, model=DEMO_MODEL_NAME, programs=programs, arrivals_s=arrivals_s, salt=salt
        )
        results = await asyncio.to_thread(replay, job, watch.on_result)
    summary = summarise(programs, arrivals_s, results)
    latency_s = summary.metrics["latency_s"]
    figures = {"lost": summary.lost_calls, "mean s": latency_s["mean"], "p95 s": latency_s["p95"]}
    if event == "drain":
        figures["empty after s"] = max(0.0, watch.ended_s - watch.event_s)
    return figures | {"all s": summary.duration_s} | moves_of(programs, results, watch.engines)


def moves_of(
    programs: Sequence[ProgramTrace], results: Sequence[CallResult], engines: Mapping[str, str]
) -> dict[str, float]:
    """Count moves and recomputes, and the tokens of those."""
    by_program: dict[str, list[CallResult]] = {program.program_id: [] for program in programs}
    for result in sorted(results, key=lambda result: result.call):
        by_program[result.program].append(result)
    names = ("moved", "moves", "moved back", "recomputes by moves", "other recomputes", "more than moves")
    tokens = ("tokens by moves", "of context", "other tokens", "prompt tokens")
    found: dict[str, float] = {"programs": len(programs), **dict.fromkeys((*names, *tokens), 0)}
    for program in programs:
        calls = [result for result in by_program[program.program_id] if result.receipt]
        places = [engines[result.receipt["call_id"]] for result in calls if result.receipt]
        moves = recomputes = 0
        for (before, call), (left, engine) in zip(pairwise(calls), pairwise(places), strict=True):
            missing = before.prompt_tokens - (call.cached_tokens or 0)
            if program.calls[call.call].prefix_from is None or missing <= 2 * BLOCK_TOKENS:
                missing = 0
            found["other tokens" if engine == left else "tokens by moves"] += missing
            found["other recomputes" if engine == left else "recomputes by moves"] += missing > 0
            recomputes += missing > 0
            if engine != left:
                moves += 1
                found["of context"] += before.prompt_tokens
                found["moved back"] += engine in places[: call.call - 1]
        found["moved"] += moves > 0
        found["moves"] += moves
        found["more than moves"] += moves > 0 and recomputes > moves
        found["prompt tokens"] += sum(call.prompt_tokens for call in calls)
    return found


async def study(args: argparse.Namespace) -> None:
    """Play all runs of all seeds."""
    engines = make_engines(settings_of(args, DEFAULT_BALANCER))
    async with running(engines):
        for turn, seed in enumerate(args.seeds):
            for run in list(RUNS) if turn % 2 == 0 else reversed(RUNS):
                loaded = args.replicas - (RUNS[run][0] == "join")
                programs = programs_of(loaded * args.programs, seed, args.scale)
                figures = await play(engines, args, programs, run, f"{seed}:{run}")
                shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
                print(f"{args.replicas} engines, seed {seed}, {run}: {shown}", flush=True)


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--programs", type=int, default=16, help="for each engine that is there at the start")
    parser.add_argument("--period-s", type=float, default=0.5, help="between two arrivals of calm and drain")
    parser.add_argument("--joining-period-s", type=float, default=0.1, help="and of stay and move")
    parser.add_argument("--scale", type=float, default=0.3, help="of lengths")
    parser.add_argument("--kv-blocks", type=int, default=400)
    parser.add_argument("--max-num-seqs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("moves-live"))
    args = parser.parse_args()
    for name, value in FIXED.items():
        setattr(args, name, value)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(study(args))


if __name__ == "__main__":
    main()
