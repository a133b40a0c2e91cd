"""Play the demo's scarce-memory programs on plain vLLM, behind ThunderAgent's router, and under our default.

    git clone https://github.com/ThunderAgent-org/ThunderAgent
    python benchmarks/thunder_live.py --thunder ThunderAgent [--rounds 10] [--workloads tools coding]

All engines are vLLM with the demo's model and KV memory; one plain vLLM serves both `vllm` and `thunder`. The
router is ThunderAgent's own code in a process of its own (`--router tr --scheduler-interval 0.1`: at its own
default of 5 s, programs of 10 s would only wait). Its clients name the program in the body of each call, and
release it after the last. The systems take turns in each round, with the same programs and arrivals, and with
words of their own. Every run is a line of `runs.jsonl`; medians come at the end. Wants an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from autellix_backend.engines import guard
from autellix_backend.engines.replica import free_port
from autellix_backend.engines.vllm_command import VLLM_SERVER, device_arguments, environment_defaults
from autellix_backend.settings import child_environment
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.bench.calibrate import Calibration
from autellix_lab.bench.compare import Target, calibrate
from autellix_lab.bench.metrics import summarise
from autellix_lab.bench.replay import CLIENT_CODE, ReplayJob, replay
from autellix_lab.demo.model import DEMO_MODEL_NAME, build_demo_model, demo_model_directory
from autellix_lab.demo.parts import BLOCK_TOKENS, DemoOptions, Part, demo_parts
from autellix_lab.workload.arrivals import poisson_arrivals

LOCAL, GRACE_S = "127.0.0.1", 5.0
THUNDER_CLIENT = Path(__file__).with_name("thunder_client.py")
THUNDER_CODE = f"import runpy; runpy.run_path({str(THUNDER_CLIENT)!r}, run_name='__main__')"
KV_BLOCKS = 180
"""Of each engine: scarce KV memory."""
FIGURES = ("mean s", "p50 s", "p95 s", "token ms", "makespan s", "cached")


@contextlib.contextmanager
def serving(log: Path, command: Sequence[str], environment: dict[str, str]) -> Iterator[str]:
    """Run a server, its port appended to the command; yield its address once it answers."""
    port = str(free_port(LOCAL))
    process = guard.start([*command, port], GRACE_S, log, child_environment(environment))
    url = f"http://{LOCAL}:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                yield url
                return
            time.sleep(0.2)
        raise RuntimeError(f"a server has ended; its log is {log}")
    finally:
        process.communicate()


@contextlib.contextmanager
def systems(args: argparse.Namespace, options: DemoOptions) -> Iterator[dict[str, str]]:
    """Run the systems; yield their addresses."""
    memory = (KV_BLOCKS - 1) * BLOCK_TOKENS
    extra = ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(KV_BLOCKS)]
    extra += ["--max-model-len", str(memory), "--enable-prompt-tokens-details"]
    model = str(build_demo_model(demo_model_directory(), 0))
    slots = options.max_num_seqs
    environment = environment_defaults(model, is_cpu=True)
    vllm = [*VLLM_SERVER, "--model", model, "--served-model-name", DEMO_MODEL_NAME, "--host", LOCAL]
    vllm += ["--max-num-seqs", str(slots), *device_arguments(model, extra, environment, is_cpu=True), *extra]
    thunder = [sys.executable, "-m", "ThunderAgent", "--host", LOCAL, "--router", "tr", "--backends"]
    with contextlib.ExitStack() as stack:
        ours = {}
        for name, host in (("default", {}), ("default, host memory", {"kv_host_gib": args.kv_host_gib})):
            engine = {"max_num_seqs": slots, "extra_args": extra, **host}
            settings = {"gateway": {"port": 0}, "engine": engine}
            backend = BackendProcess(name.replace(", ", "-").replace(" ", "-"), "demo", settings, args.out)
            ours[name] = stack.enter_context(backend)
            backend.launch()
        plain = stack.enter_context(serving(args.out / "vllm.log", [*vllm, "--port"], environment))
        thunder += [plain, "--scheduler-interval", str(args.interval), "--port"]
        path = {"PYTHONPATH": str(args.thunder)}
        router = stack.enter_context(serving(args.out / "thunder.log", thunder, path))
        for backend in ours.values():
            backend.wait_ready()
        yield {"vllm": plain, "thunder": router} | {name: item.base_url for name, item in ours.items()}


def speed_of(url: str, part: Part, salt: str) -> Calibration:
    """Measure an engine's speed without recomputation; this also warms it up."""
    target = Target(base_url=url, model=DEMO_MODEL_NAME)
    slots, tokens = part.calibration_slots, part.calibration_tokens
    return calibrate(target, part.calibration, slots, tokens, lambda *_: lambda _: None, salt=salt)


def play_round(urls: dict[str, str], part: Part, number: int) -> Iterator[dict[str, Any]]:
    """Play a part's programs on each system, in the other order in every second round; yield the figures."""
    load = part.load
    rate_per_s = speed_of(urls["vllm"], part, f"round {number}").rate_for(load.rho, load.programs)
    arrivals_s = poisson_arrivals(len(load.programs), rate_per_s, 0)
    for name in urls if number % 2 else reversed(urls):
        job = ReplayJob(
            base_url=urls[name],
            model=DEMO_MODEL_NAME,
            programs=load.programs,
            arrivals_s=arrivals_s,
            salt=f"{name}:{number}",
        )
        results = replay(job, client_code=THUNDER_CODE if name == "thunder" else CLIENT_CODE)
        run = summarise(load.programs, arrivals_s, results)
        latency, token_ms = run.metrics["latency_s"], 1000 * run.metrics["token_latency_s"]["mean"]
        cached = run.totals["cached_tokens"] / run.totals["prompt_tokens"]
        figures = (latency["mean"], latency["p50"], latency["p95"], token_ms, run.duration_s, cached)
        yield {"system": name, "round": number, "lost": run.lost_calls} | dict(
            zip(FIGURES, figures, strict=True)
        )


def print_table(workload: str, runs: Sequence[dict[str, Any]]) -> None:
    """Print the medians of each system, and in how many rounds it is ahead of ThunderAgent's router."""
    of = {name: [run for run in runs if run["system"] == name] for name in {run["system"]: 0 for run in runs}}
    print(f"\n{workload}, {len(of['thunder'])} rounds: median (rounds ahead of `thunder`)\n")
    print("| | " + " | ".join(FIGURES) + " |\n|---" + "|---" * len(FIGURES) + "|")
    for name, own in of.items():
        cells = []
        for figure in FIGURES:
            sign = 1 if figure == "cached" else -1
            pairs = zip(own, of["thunder"], strict=True)
            ahead = sum(sign * run[figure] > sign * other[figure] for run, other in pairs)
            cells.append(f"{median(run[figure] for run in own):.3g} ({ahead})")
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--thunder", type=Path, required=True, help="a checkout of ThunderAgent")
    parser.add_argument("--interval", type=float, default=0.1, help="of its scheduler, s")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--workloads", nargs="+", default=["tools", "coding"])
    parser.add_argument("--programs", type=int, default=32)
    parser.add_argument("--kv-host-gib", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("thunder-live"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    options = DemoOptions(kv_programs=args.programs, kv_blocks=KV_BLOCKS)
    parts = {name: demo_parts(dataclasses.replace(options, kv_workload=name))[0] for name in args.workloads}
    with systems(args, options) as urls, (args.out / "runs.jsonl").open("a", encoding="utf-8") as file:
        for workload, part in parts.items():
            for turn in range(part.warm_ups):
                for name in ("vllm", *list(urls)[2:]):
                    speed_of(urls[name], part, f"{workload} warm-up {turn}")
            runs = []
            for number in range(1, args.rounds + 1):
                for run in play_round(urls, part, number):
                    runs.append(run)
                    print(json.dumps({"workload": workload} | run), file=file, flush=True)
            print_table(workload, runs)


if __name__ == "__main__":
    main()
