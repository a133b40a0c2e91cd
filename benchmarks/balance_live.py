"""Play chats and trees on real engines behind one gateway, under each balancer in turn.

The engines are started once. For each workload the offered load is set by their measured speed; then each
balancer gets a gateway of its own, and the same programs at the same arrival times, with words that no run
before it had: nothing is in a cache at the start. Calls share the context of their program: a chat its
history, a tree its common prefixes.

    python benchmarks/balance_live.py [--replicas 2] [--programs 40] [--rho 0.7]
    python benchmarks/balance_live.py --workloads tools --kv-blocks 150 --rounds 3 \\
        --balancers locality-bounded working-set      scarce KV memory

Reported are the share of prompt tokens found in the prefix caches, the latency of programs in seconds, and
that of a token in engine steps, each also as a ratio to the first balancer's. The balancers take turns in
each round. Wants an idle machine. `--engine URL` (repeatable) takes running engines in place of own ones: it
shows that everything works.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from autellix_backend.assembly import create_app
from autellix_backend.core.balance import BALANCER_NAMES
from autellix_backend.engines.base import Engine
from autellix_backend.engines.factory import make_engines
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.settings import BalancerSettings, EngineSettings, GatewaySettings, Settings
from autellix_lab.bench.compare import Target, calibrate
from autellix_lab.bench.metrics import RunSummary, summarise
from autellix_lab.bench.replay import ReplayJob, replay
from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace import ProgramTrace

BLOCK_TOKENS = 32
RUN_TIMEOUT_S = 1800.0


@asynccontextmanager
async def running(engines: Sequence[Engine]) -> AsyncIterator[None]:
    """Run the engines inside."""
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        yield
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))


@asynccontextmanager
async def gateway(
    engines: Sequence[Engine], settings: Settings, on_settled: Callable[[SettledCall], None] = lambda _: None
) -> AsyncIterator[str]:
    """Serve a gateway of its own inside; yield its address."""
    app = create_app(settings, *engines)
    app.state.gateway.registry.subscribe(on_settled=on_settled)
    config = uvicorn.Config(app, port=0, http="h11", ws="none", access_log=False, log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn offers no event
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        app.state.gateway.closing.set()
        await serving


def settings_of(args: argparse.Namespace, balancer: str) -> Settings:
    """Return the settings of the engines and the gateway."""
    engine: dict[str, Any] = {"urls": tuple(args.engine)}
    if not args.engine:
        max_tokens, extra_args = 2 * args.max_context, ("--block-size", str(BLOCK_TOKENS))
        if args.kv_blocks is not None:
            # One is vLLM's null block, and vLLM refuses a context that is longer than its memory.
            max_tokens = min(max_tokens, (args.kv_blocks - 1) * BLOCK_TOKENS)
            extra_args += ("--num-gpu-blocks-override", str(args.kv_blocks))
        extra_args += ("--max-model-len", str(max_tokens))
        engine = {"model": args.model, "replicas": args.replicas, "extra_args": extra_args}
    return Settings(
        gateway=GatewaySettings(report_wait_s=5.0),
        engine=EngineSettings(max_num_seqs=args.max_num_seqs, state_dir=args.out, **engine),
        balancer=BalancerSettings(name=balancer, threshold_tokens=args.threshold_tokens),
    )


async def study(args: argparse.Namespace) -> dict[str, Any]:
    """Play every workload under every balancer; return the figures."""
    engines = make_engines(settings_of(args, args.balancers[0]))
    async with running(engines):
        return {workload: await _play_workload(args, engines, workload) for workload in args.workloads}


async def _play_workload(
    args: argparse.Namespace, engines: Sequence[Engine], workload: str
) -> dict[str, dict[str, float]]:
    programs = [
        fit_program(program, length_scale=args.length_scale, max_context_tokens=args.max_context)
        for program in generate_programs(workload, args.programs, args.seed, tree_scale=args.tree_scale)
    ]
    async with gateway(engines, settings_of(args, "least_used")) as url:
        target = Target(base_url=url, model=args.served_model)
        slots = args.max_num_seqs * len(engines)
        tokens = slots * args.calibration_tokens
        speed = await asyncio.to_thread(
            calibrate, target, programs, slots, tokens, lambda _title, _calls: lambda _: None, salt=workload
        )
    arrivals_s = poisson_arrivals(len(programs), speed.rate_for(args.rho, programs), args.seed)
    found: dict[str, dict[str, float]] = {}
    for number in range(1, args.rounds + 1):
        runs: dict[str, dict[str, float]] = {}
        for balancer in args.balancers:
            async with gateway(engines, settings_of(args, balancer)) as url:
                run = await asyncio.to_thread(
                    _play, url, args, programs, arrivals_s, f"{args.seed}:{workload}:{balancer}:{number}"
                )
            runs[balancer] = _figures(run)
            print(f"{workload}, round {number}, {balancer}: {runs[balancer]}", file=sys.stderr, flush=True)
        baseline = runs[args.balancers[0]]
        for balancer, own in runs.items():
            ratios = {f"{name} ratio": own[name] / baseline[name] for name in own if baseline.get(name)}
            found[f"{balancer}, round {number}"] = own | ratios
    return found


def _play(
    url: str,
    args: argparse.Namespace,
    programs: Sequence[ProgramTrace],
    arrivals_s: Sequence[float],
    salt: str,
) -> RunSummary:
    job = ReplayJob(
        base_url=url,
        model=args.served_model,
        programs=programs,
        arrivals_s=arrivals_s,
        salt=salt,
        timeout_s=RUN_TIMEOUT_S,
    )
    results = replay(job)
    summary = summarise(programs, arrivals_s, results)
    if summary.lost_calls:
        raise RuntimeError(f"{salt}: {summary.lost_calls} calls were lost: {summary.errors}")
    return summary


def _figures(run: RunSummary) -> dict[str, float]:
    return {
        "cached share": run.totals["cached_tokens"] / run.totals["prompt_tokens"],
        "mean latency (s)": run.metrics["latency_s"]["mean"],
        "p95 latency (s)": run.metrics["latency_s"]["p95"],
        # Along the critical path, call by call: engines count their own steps.
        **{
            f"{statistic} token latency (steps)": value
            for statistic, value in run.metrics.get("token_latency_steps", {}).items()
            if statistic in ("mean", "p95")
        },
    }


def print_figures(found: dict[str, Any]) -> None:
    """Print one line per workload, balancer and round."""
    for workload, balancers in found.items():
        for balancer, figures in balancers.items():
            shown = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
            print(f"{workload:>8} {balancer:>28}  {shown}")


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--engine", action="append", default=[], metavar="URL")
    parser.add_argument("--workloads", nargs="+", default=["chat", "tree"])
    parser.add_argument("--balancers", nargs="+", default=list(BALANCER_NAMES), choices=BALANCER_NAMES)
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kv-blocks", type=int, help="of each engine; default: as many as fit")
    parser.add_argument("--rho", type=float, default=0.7)
    parser.add_argument("--length-scale", type=float, default=0.5)
    parser.add_argument("--tree-scale", type=float, default=0.25)
    parser.add_argument("--max-context", type=int, default=2048)
    parser.add_argument("--threshold-tokens", type=int, default=256)
    parser.add_argument("--max-num-seqs", type=int, default=4)
    parser.add_argument("--calibration-tokens", type=int, default=1500, help="per slot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--served-model", default=DEMO_MODEL_NAME)
    parser.add_argument("--out", type=Path, default=Path("balance-live"))
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(study(args))
    print_figures(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
