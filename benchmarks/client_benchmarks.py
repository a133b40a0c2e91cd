"""Other people's benchmark clients, on plain vLLM, on our engine, and through the gateway.

    python benchmarks/client_benchmarks.py [--guidellm PROGRAM] [--requests 40] [--at-once 8] [--seeds 1 2 3]

`vllm bench serve` (openai-chat) and, where its program is named, guidellm: the same requests with every seed
on each way in turn, prefix caches emptied before. Says for each run how many requests failed, which tokens
were counted, the throughput, and the times to the first and between further tokens; then the median of the
seeds' ratios to plain vLLM. guidellm wants an environment of its own: `pip install guidellm`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import proxies

from autellix_backend.engines.replica import VllmReplica
from autellix_backend.settings import EngineSettings, Settings
from autellix_lab.demo.model import DEMO_MODEL_NAME, build_demo_model, demo_model_directory

PROMPT_TOKENS = 96
ANSWER_TOKENS = 48
PLAIN = "vLLM alone"
RUN_LIMIT_S = 300.0
START_LIMIT_S = 600.0
# vLLM's script does not start where vLLM is installed from its CPU build.
VLLM_BENCH = (
    "import argparse, sys; from vllm.benchmarks.serve import add_cli_args, main;"
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


class PlainReplica(VllmReplica):
    """The same engine without our scheduler."""

    def command(self, port: int) -> list[str]:
        """Return the server's command line without the plugin's options."""
        command = super().command(port)
        for option in ("--scheduler-cls", "--additional-config"):
            place = command.index(option)
            del command[place : place + 2]
        return command


@dataclass(frozen=True, slots=True)
class Way:
    """How requests reach an engine."""

    name: str
    url: str
    engine_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A client's figures of one run."""

    client: str
    way: str
    seed: int
    done: int
    failed: int
    prompt_tokens: int
    output_tokens: int
    tokens_per_s: float
    first_token_ms: float
    token_ms: float


def bench_serve(way: Way, model: str, seed: int, options: argparse.Namespace, folder: Path) -> Run:
    """Run vLLM's client."""
    fields: dict[str, object] = {
        "backend": "openai-chat",
        "base-url": way.url,
        "endpoint": "/v1/chat/completions",
        "model": DEMO_MODEL_NAME,
        "tokenizer": model,
        "dataset-name": "random",
        "random-input-len": PROMPT_TOKENS,
        "random-output-len": ANSWER_TOKENS,
        "random-range-ratio": 0.5,
        "num-prompts": options.requests,
        "max-concurrency": options.at_once,
        "temperature": 0,
        "seed": seed,
        "result-dir": folder,
        "result-filename": "bench.json",
    }
    flags = ["--ignore-eos", "--save-result", "--disable-tqdm"]
    told = [part for name, value in fields.items() for part in (f"--{name}", str(value))]
    _call([sys.executable, "-c", VLLM_BENCH, *told, *flags])
    found = json.loads((folder / "bench.json").read_text())
    return Run(
        client="vllm bench serve",
        way=way.name,
        seed=seed,
        done=found["completed"],
        failed=found["failed"],
        prompt_tokens=found["total_input_tokens"],
        output_tokens=found["total_output_tokens"],
        tokens_per_s=found["output_throughput"],
        first_token_ms=found["mean_ttft_ms"],
        token_ms=found["mean_tpot_ms"],
    )


def guidellm(way: Way, model: str, seed: int, options: argparse.Namespace, folder: Path) -> Run:
    """Run guidellm."""
    path = folder / "guidellm.json"
    data = f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={ANSWER_TOKENS}"
    _call(
        [
            *(options.guidellm, "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={way.url},model={DEMO_MODEL_NAME}"),
            *("--profile", f"kind=concurrent,streams={options.at_once}"),
            *("--constraint", f"kind=max_requests,count={options.requests}"),
            *("--data", f"{data},prompt_tokens_stdev=24,output_tokens_stdev=12"),
            *("--tokenizer", f"kind=huggingface_auto,model={model}"),
            *("--seed", f"kind=static,value={seed}"),
            *("--output", f"kind=json,path={path}"),
        ]
    )
    found = json.loads(path.read_text())["benchmarks"][0]
    metrics = found["metrics"]
    totals = metrics["request_totals"]

    def successful(name: str) -> dict[str, float]:
        values: dict[str, float] = metrics[name]["successful"]
        return values

    return Run(
        client="guidellm",
        way=way.name,
        seed=seed,
        done=totals["successful"],
        failed=totals["errored"],
        prompt_tokens=round(successful("prompt_token_count")["total_sum"]),
        output_tokens=round(successful("output_token_count")["total_sum"]),
        tokens_per_s=successful("output_tokens_per_second")["mean"],
        first_token_ms=successful("time_to_first_token_ms")["mean"],
        token_ms=successful("inter_token_latency_ms")["mean"],
    )


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def forget(way: Way) -> None:
    """Empty the engine's prefix cache."""
    request = urllib.request.Request(f"{way.engine_url}/reset_prefix_cache", method="POST")
    with urllib.request.urlopen(request, timeout=60.0):
        pass


async def start(stack: AsyncExitStack, options: argparse.Namespace, folder: Path) -> list[Way]:
    """Start the engines and the gateway for as long as the stack is open."""
    model = str(build_demo_model(demo_model_directory()))
    engines: list[VllmReplica] = []
    for kind, name in ((PlainReplica, "plain"), (VllmReplica, "ours")):
        settings = EngineSettings(
            model=model,
            served_model_name=DEMO_MODEL_NAME,
            state_dir=folder / name,
            max_num_seqs=options.slots,
            startup_timeout_s=START_LIMIT_S,
        )
        # vLLM empties its prefix cache on request only for developers.
        engine = kind(Settings(engine=settings), name=name, environment={"VLLM_SERVER_DEV_MODE": "1"})
        stack.push_async_callback(engine.stop)
        engines.append(engine)
    await asyncio.gather(*(engine.start() for engine in engines))
    plain, ours = engines
    gateway = await stack.enter_async_context(proxies.gateway(ours))
    return [
        Way(PLAIN, plain.base_url, plain.base_url),
        Way("our engine", ours.base_url, ours.base_url),
        Way("through the gateway", gateway.url, ours.base_url),
    ]


async def measure(options: argparse.Namespace, folder: Path) -> list[Run]:
    """Let the clients take turns on the three ways."""
    model = str(build_demo_model(demo_model_directory()))
    clients = [] if options.guidellm_alone else [bench_serve]
    clients += [guidellm] if options.guidellm else []
    runs: list[Run] = []
    async with AsyncExitStack() as stack:
        ways = await start(stack, options, folder)
        for seed, client in itertools.product(options.seeds, clients):
            turn = seed % len(ways)
            for way in ways[turn:] + ways[:turn]:
                await asyncio.to_thread(forget, way)
                run = await asyncio.to_thread(client, way, model, seed, options, folder)
                runs.append(run)
                print(json.dumps(asdict(run)), file=sys.stderr, flush=True)
    return runs


def table(runs: Sequence[Run]) -> str:
    """Return the runs as a table, and the medians of the ratios to plain vLLM."""
    lines = [
        "| client | seed | way | done | failed | tokens in | out | tokens/s | first, ms | further, ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda each: (each.client, each.seed)):
        counts = f"{run.done} | {run.failed} | {run.prompt_tokens} | {run.output_tokens}"
        times = f"{run.tokens_per_s:.0f} | {run.first_token_ms:.0f} | {run.token_ms:.1f}"
        lines.append(f"| {run.client} | {run.seed} | {run.way} | {counts} | {times} |")
    lines += ["", "| client | way | tokens/s | first token | further tokens |", "|---|---|---|---|---|"]
    plain = {(run.client, run.seed): run for run in runs if run.way == PLAIN}
    for client, way in dict.fromkeys((run.client, run.way) for run in runs):
        ratios: dict[str, list[float]] = {"tokens_per_s": [], "first_token_ms": [], "token_ms": []}
        for run in runs:
            if (run.client, run.way) == (client, way):
                for name, values in ratios.items():
                    values.append(getattr(run, name) / getattr(plain[client, run.seed], name))
        cells = [f"{statistics.median(values):.2f}" for values in ratios.values()]
        lines.append(f"| {client} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def faults(runs: Sequence[Run]) -> list[str]:
    """Return what must not be: failed requests, and other counts of tokens than on plain vLLM."""
    found = [f"{run.client}, seed {run.seed}, {run.way}: {run.failed} failed" for run in runs if run.failed]
    plain = {(run.client, run.seed): run for run in runs if run.way == PLAIN}
    for run in runs:
        first = plain[run.client, run.seed]
        if (run.done, run.prompt_tokens, run.output_tokens) != (
            first.done,
            first.prompt_tokens,
            first.output_tokens,
        ):
            found.append(f"{run.client}, seed {run.seed}, {run.way}: other counts")
    return found


def main() -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--guidellm", metavar="PROGRAM", help="its program, in an environment of its own")
    parser.add_argument("--guidellm-alone", action="store_true", help="without `vllm bench serve`")
    parser.add_argument("--requests", type=int, default=40, help="in each run")
    parser.add_argument("--at-once", type=int, default=8, help="how many at once")
    parser.add_argument("--slots", type=int, default=4, help="batch slots of an engine")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    if options.guidellm_alone and not options.guidellm:
        parser.error("--guidellm-alone: expected --guidellm PROGRAM")
    with tempfile.TemporaryDirectory() as folder:
        runs = asyncio.run(measure(options, Path(folder)))
    print(table(runs))
    problems = faults(runs)
    print("\n".join(problems) or "\nNo request failed, and all counts are equal.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
