"""Play the demo's scarce-memory programs on plain vLLM, on routers and schedulers of others, and on ours.

    git clone https://github.com/ThunderAgent-org/ThunderAgent
    python benchmarks/peers_live.py --peers ThunderAgent A/bin/vllm-router B/bin/vllm C/bin/sglang-router

All engines are vLLM with the demo's model and KV memory. The same plain ones serve clients directly (a
fixed split of the programs where there are several), each router, and `autellix by URL`. `autellix` has its
own behind its gateway, `autellix inside` its own without one, and so has AgentInfer. Those with `host
memory`, which `--systems` has to name, offload KV blocks to one GiB, and play `coding` alone. Each peer
runs as its documentation recommends, and its clients name programs in its own way (peers.py,
peers_client.py).

In each round all systems play the same programs and arrivals, drawn for that round, in a seeded order, with
words of their own. On one engine, arrivals and pauses are steps of the engine that serves (the demo's
clock, prefill weighed), which other work on the machine makes longer and not more numerous: figures in
steps hold on a machine that is not idle. On several engines they are seconds.

Each run is a line of OUT/runs.jsonl; runs that are there are not repeated, so that `--minutes` may cut the
work into parts. The tables come at the end, and with `--rounds 0` alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from peers import AGENTINFER, AGENTINFER_OWN, LOCAL, Peer, agentinfer, name_of, peer

from autellix_backend.engines import guard
from autellix_backend.engines.replica import free_port
from autellix_backend.engines.vllm_command import VLLM_SERVER, device_arguments, environment_defaults
from autellix_backend.settings import child_environment
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.bench.calibrate import Calibration
from autellix_lab.bench.compare import Target, calibrate
from autellix_lab.bench.metrics import summarise
from autellix_lab.bench.replay import CLIENT_CODE, ReplayJob, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.bench.step_clock import engine_work
from autellix_lab.demo.model import DEMO_MODEL_NAME, build_demo_model, demo_model_directory
from autellix_lab.demo.parts import BLOCK_TOKENS, DemoOptions, Part, demo_parts
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.statistics import mean_of, standard_error
from autellix_lab.workload.trace import ProgramTrace

GRACE_S, START_S = 5.0, 900.0
CLI = (sys.executable, "-m", "autellix_backend.cli.main")
HERE = Path(__file__).parent
PEER_CODE = (
    f"sys.path.insert(0, {str(HERE)!r}); import runpy; runpy.run_module('peers_client', run_name='__main__')"
)
KV_BLOCKS = 180
"""Of each engine: scarce KV memory."""
KV_TOKENS = (KV_BLOCKS - 1) * BLOCK_TOKENS
HOST_GIB = 1
WARM_UPS = 4
"""A CPU engine decodes its first thousands of tokens at half speed."""
DIRECT, DIRECT_HOST = "vLLM", "vLLM, host memory"
BY_URL, INSIDE, OURS, OURS_HOST = "autellix by URL", "autellix inside", "autellix", "autellix, host memory"
OURS_ALL = (BY_URL, INSIDE, OURS, OURS_HOST)
WITH_HOST = (DIRECT_HOST, OURS_HOST)
"""They play `coding` alone."""
FIGURES = ("mean steps", "p95 steps", "last steps", "mean s", "p95 s", "last s")
"""Of program latencies, and until the last program has ended."""
PASSES = "passes"
"""Forward passes of all engines."""
ERRORS = ("lost", "other length")
Run = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A server that has been started under a guard."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def wait(self, health: str) -> None:
        """Return once it answers."""
        deadline_s = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + health, timeout=5):
                return
            time.sleep(0.5)
        raise RuntimeError(f"a server has ended or does not answer; its log is {self.log}")


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """What is compared."""

    urls: Sequence[str]
    """Where clients send their calls; each address has its share of the programs."""
    engines: Sequence[str]
    """The vLLM servers that answer."""


@contextlib.contextmanager
def starting(made: Peer, log: Path) -> Iterator[Server]:
    """Run a server, without waiting for it."""
    process = guard.start(made.command, GRACE_S, log, child_environment(dict(made.environment)))
    try:
        yield Server(process, f"http://{LOCAL}:{made.port}", log)
    finally:
        process.communicate()


@contextlib.contextmanager
def systems(args: argparse.Namespace, options: DemoOptions) -> Iterator[dict[str, System]]:
    """Run the systems."""
    extra = ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(KV_BLOCKS)]
    extra += ["--max-model-len", str(KV_TOKENS), "--enable-prompt-tokens-details"]
    engine = {"max_num_seqs": options.max_num_seqs, "extra_args": extra, "replicas": args.engines}
    sizes = {OURS: {}, OURS_HOST: {"kv_host_gib": HOST_GIB}}
    with contextlib.ExitStack() as stack:

        def start(made: Peer) -> Server:
            return stack.enter_context(starting(made, args.out / f"{file_name(made.name)}-{made.port}.log"))

        gateways = {}
        for name in [name for name in sizes if name in args.systems]:
            settings = {"gateway": {"port": 0}, "engine": engine | sizes[name]}
            gateways[name] = BackendProcess(file_name(name), "demo", settings, args.out)
            stack.enter_context(gateways[name]).launch()
        kinds = [
            name for name in (DIRECT, DIRECT_HOST, INSIDE, AGENTINFER, AGENTINFER_OWN) if name in args.systems
        ]
        servers = {
            name: [start(bare_engine(args, name, options, extra)) for _ in range(args.engines)]
            for name in kinds
        }
        found = {}
        for name, own in servers.items():
            for server in own:
                server.wait("/health")
            urls = [server.url for server in own]
            found[name] = System(urls, urls)
        plain = found[DIRECT].urls
        started = [(made, start(made)) for made in fronts(args, plain)]
        for made, server in started:
            server.wait(made.health)
            found[made.name] = System([server.url], plain)
        for name, gateway in gateways.items():
            gateway.wait_ready(START_S)
            found[name] = System([gateway.base_url], engines_of(gateway))
        yield {name: found[name] for name in args.systems}


def file_name(system: str) -> str:
    """Return a name without blanks and commas."""
    return system.replace(",", "").replace(" ", "-")


def engines_of(gateway: BackendProcess) -> list[str]:
    """Return the addresses of a gateway's engines."""
    with urllib.request.urlopen(f"{gateway.base_url}/autellix/v1/engines", timeout=30) as answer:
        return [str(engine["base_url"]) for engine in json.load(answer)["engines"]]


def bare_engine(args: argparse.Namespace, name: str, options: DemoOptions, extra: Sequence[str]) -> Peer:
    """Return a vLLM server that clients call directly."""
    model, port = str(build_demo_model(demo_model_directory(), 0)), free_port(LOCAL)
    environment = environment_defaults(model, is_cpu=True)
    words = ["--served-model-name", DEMO_MODEL_NAME, "--host", LOCAL]
    words += ["--max-num-seqs", str(options.max_num_seqs)]
    words += [*device_arguments(model, extra, environment, is_cpu=True), *extra]
    if name == INSIDE:
        command = [*CLI, "vllm", "serve", model, *words, "--port", str(port)]
    elif name in (AGENTINFER, AGENTINFER_OWN):
        program = next(program for program in args.peers if name_of(program) == AGENTINFER)
        made = agentinfer(program, ["--model", model, *words], port, is_fitted=name == AGENTINFER)
        return dataclasses.replace(made, environment={**environment, **made.environment})
    else:
        offload = ["--kv-offloading-size", str(HOST_GIB)] if name == DIRECT_HOST else []
        command = [*VLLM_SERVER, "--model", model, *words, *offload, "--port", str(port)]
    return Peer(name=name, command=command, port=port, environment=environment)


def fronts(args: argparse.Namespace, plain: Sequence[str]) -> Iterator[Peer]:
    """Return what stands in front of the plain engines."""
    for program in args.peers:
        if name_of(program) in args.systems and name_of(program) != AGENTINFER:
            yield peer(program, plain, free_port(LOCAL), DEMO_MODEL_NAME, args.out, kv_tokens=KV_TOKENS)
    if BY_URL in args.systems:
        port = free_port(LOCAL)
        command = [*CLI, "serve", "--port", str(port)]
        command += [word for url in plain for word in ("--engine", url)]
        yield Peer(name=BY_URL, command=command, port=port, health="/readyz")


def play(
    name: str,
    system: System,
    programs: Sequence[ProgramTrace],
    arrivals_s: Sequence[float],
    salt: str,
    speed: Calibration | None,
) -> list[CallResult]:
    """Play programs on a system, at an engine's speed on its own clock; without one, in seconds."""
    code = f"import sys; sys.argv = ['', {name!r}]; {PEER_CODE}"
    jobs = [
        ReplayJob(
            base_url=url,
            model=DEMO_MODEL_NAME,
            programs=programs[place :: len(system.urls)],
            arrivals_s=arrivals_s[place :: len(system.urls)],
            salt=salt,
            engine_url=system.engines[0] if speed else None,
            step_s=speed.step_s if speed else math.inf,
        )
        for place, url in enumerate(system.urls)
    ]
    client_code = CLIENT_CODE if name in OURS_ALL else code
    with ThreadPoolExecutor(len(jobs)) as pool:
        parts = pool.map(lambda job: replay(job, client_code=client_code), jobs)
        return [result for part in parts for result in part]


def figures_of(
    programs: Sequence[ProgramTrace], arrivals_s: Sequence[float] | None, results: Sequence[CallResult]
) -> Run:
    """Return a run's figures; calls with an answer of another length than asked are counted."""
    run = summarise(programs, arrivals_s, results)
    wanted = {
        (program.program_id, call.id): call.decode_tokens for program in programs for call in program.calls
    }
    other = sum(
        result.error is None and result.output_tokens != max(1, wanted[result.program, result.call])
        for result in results
    )
    found: Run = {}
    last_steps = max(
        (result.finish_step for result in results if result.finish_step is not None), default=None
    )
    for unit, last in (("steps", last_steps), ("s", run.duration_s)):
        latency = run.metrics.get(f"latency_{unit}", {})
        found |= {
            f"mean {unit}": latency.get("mean"),
            f"p95 {unit}": latency.get("p95"),
            f"last {unit}": last,
        }
    found["cached"] = run.totals["cached_tokens"] / max(1, run.totals["prompt_tokens"])
    return found | {"lost": run.lost_calls, "other length": other, "errors": run.errors}


def work(system: System) -> tuple[float, float]:
    """Return the forward passes and the prefilled tokens of a system's engines since they started."""
    found = []
    for url in system.engines:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            found.append(engine_work(answer.read().decode()))
    return sum(each.steps for each in found), sum(each.prefilled_tokens for each in found)


def read_runs(path: Path) -> list[Run]:
    """Return the runs of a file, which need not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def order_of(names: Sequence[str], workload: str, number: int) -> list[str]:
    """Return the order in which systems take their turns in a round."""
    order = list(names)
    random.Random(f"{workload}:{number}").shuffle(order)
    return order


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """A quotient of two means over rounds, with its standard error."""

    ratio: float
    error: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f}" + ("" if math.isinf(self.error) else f" ± {self.error:.2f}")


def share_of(runs: Sequence[Run], system: str, base: str, figure: str) -> Share | None:
    """Return a figure of a system over that of another, over the rounds of one workload that have both.

    The error is that of the rounds' residuals (the delta method). None without a round.
    """
    known = {(run["system"], run["round"]): run.get(figure) for run in runs}
    rounds = sorted({number for _, number in known})
    pairs = [(known.get((system, number)), known.get((base, number))) for number in rounds]
    both = [(own, other) for own, other in pairs if own is not None and other is not None]
    scale = mean_of([other for _, other in both]) if both else 0.0
    if scale <= 0:
        return None
    ratio = mean_of([own for own, _ in both]) / scale
    return Share(ratio, standard_error([(own - ratio * other) / scale for own, other in both]))


def table(runs: Sequence[Run], systems: Sequence[str], titles: Sequence[str] = (*FIGURES, PASSES)) -> str:
    """Return a workload's runs as a Markdown table: plain vLLM's means, and the shares of others."""
    figures = [figure for figure in titles if any(run.get(figure) is not None for run in runs)]
    lines = [f"| | {' | '.join(figures)} | cached | errors, rounds |", "|---" * (len(figures) + 3) + "|"]
    for name in systems:
        own = [run for run in runs if run["system"] == name]
        if not own:
            continue
        if name == DIRECT:
            cells = [
                spread([run[figure] for run in own if run.get(figure) is not None]) for figure in figures
            ]
        else:
            cells = [str(share_of(runs, name, DIRECT, figure) or "-") for figure in figures]
        cells.append(f"{mean_of([run['cached'] for run in own]):.2f}")
        errors = sum(run.get(kind, 0) for run in own for kind in ERRORS)
        lines.append(f"| {name} | {' | '.join(cells)} | {errors}, {len(own)} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Return the mean of values with its standard error; a dash for none, as programs lost calls."""
    if not values:
        return "-"
    form = ".3g" if mean_of(values) < 100 else ".0f"
    text = f"{mean_of(values):{form}}"
    return text if len(values) == 1 else f"{text} ± {standard_error(values):{form.replace('3', '2')}}"


def losses(runs: Sequence[Run], systems: Sequence[str], base: str) -> list[str]:
    """Return where others are ahead of a system of ours, the farthest first."""
    found = [
        (share.ratio, f"{figure}: {name} {share} of {base}")
        for name in systems
        if name not in OURS_ALL
        for figure in FIGURES
        if (share := share_of(runs, name, base, figure)) is not None and share.ratio < 1
    ]
    return [line for _, line in sorted(found)]


@dataclasses.dataclass(slots=True)
class Measurement:
    """Plays what is missing, and writes it down."""

    args: argparse.Namespace
    systems: Mapping[str, System]
    options: Mapping[str, DemoOptions]
    """By workload."""
    runs: list[Run]
    deadline_s: float

    def part(self, workload: str, number: int) -> Part:
        """Return the programs of a round."""
        return demo_parts(dataclasses.replace(self.options[workload], seed=number))[0]

    def warm_up(self) -> None:
        """Let each system make the calls of programs that fit into memory together."""
        programs = self.part(next(iter(self.options)), 1).calibration
        for name, system in self.systems.items():
            for _ in range(WARM_UPS):
                play(name, system, programs, [0.0] * len(programs), f"warm-up:{time.time()}", None)

    def play_rounds(self) -> None:
        """Play until all is there or the time is over."""
        for number in range(1, self.args.rounds + 1):
            for workload in self.options:
                names = [name for name in self.systems if name not in WITH_HOST or workload == "coding"]
                for name in order_of(names, workload, number):
                    if time.monotonic() > self.deadline_s:
                        return
                    if not any(
                        run["system"] == name and run["round"] == number for run in self._known(workload)
                    ):
                        self._play(workload, number, name)

    def _known(self, workload: str) -> list[Run]:
        key = (self.args.engines, workload)
        return [run for run in self.runs if (run["engines"], run["workload"]) == key]

    def _play(self, workload: str, number: int, name: str) -> None:
        system, load, speed = (
            self.systems[name],
            self.part(workload, number).load,
            self._speed(workload, number),
        )
        rate_per_s = self.args.engines * speed.rate_for(load.rho, load.programs)
        arrivals_s = poisson_arrivals(len(load.programs), rate_per_s, number)
        busy, (passes, prefilled) = os.getloadavg()[0], work(system)
        salt = f"{name}:{number}:{self.args.engines}"
        clock = speed if self.args.engines == 1 else None
        results = play(name, system, load.programs, arrivals_s, salt, clock)
        run = {"engines": self.args.engines, "workload": workload, "round": number, "system": name}
        run |= {"programs": len(load.programs), "speed": dataclasses.asdict(speed), "load": busy}
        run |= figures_of(load.programs, None if clock else arrivals_s, results)
        passes_now, prefilled_now = work(system)
        run |= {PASSES: passes_now - passes, "prefilled": prefilled_now - prefilled}
        self.runs.append(run)
        with (self.args.out / "runs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        print(json.dumps(run), file=sys.stderr, flush=True)

    def _speed(self, workload: str, number: int) -> Calibration:
        """Return an engine's speed: on its clock that of all rounds, in seconds that of this round."""
        is_clock = self.args.engines == 1
        for run in self._known(workload):
            if is_clock or run["round"] == number:
                return Calibration(**run["speed"])
        engine = self.systems[DIRECT].engines[0]
        target = Target(base_url=engine, model=DEMO_MODEL_NAME, engine_url=engine if is_clock else None)
        part, salt = self.part(workload, number), f"{workload}:{number}:{time.time()}"
        slots, tokens = part.calibration_slots, part.calibration_tokens
        found = calibrate(target, part.calibration, slots, tokens, lambda *_: lambda _: None, salt=salt)
        if not is_clock or self.args.step_ms is None:
            return found
        # Other work leaves the tokens of a step as they are.
        step_s = self.args.step_ms / 1000
        tokens_per_s = found.tokens_per_s * found.step_s / step_s
        return dataclasses.replace(found, tokens_per_s=tokens_per_s, step_s=step_s)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, nargs="*", default=[], metavar="PROGRAM")
    parser.add_argument(
        "--systems", nargs="+", help=f"default: all without host memory; `{DIRECT}` is needed"
    )
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=["tools", "coding"])
    parser.add_argument(
        "--programs", type=int, nargs="+", default=[32], help="of each workload, or for all", metavar="N"
    )
    parser.add_argument(
        "--step-ms", type=float, help="an engine's step on idle cores, by which pauses become steps"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no run begins")
    parser.add_argument("--out", type=Path, default=Path("peers-live"))
    args = parser.parse_args()
    deadline_s = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    args.systems = args.systems or [DIRECT, *map(name_of, args.peers), BY_URL, INSIDE, OURS]
    counts = args.programs * (len(args.workloads) if len(args.programs) == 1 else 1)
    options = {
        workload: DemoOptions(kv_workload=workload, kv_programs=count, kv_blocks=KV_BLOCKS)
        for workload, count in zip(args.workloads, counts, strict=True)
    }
    runs = read_runs(args.out / "runs.jsonl")
    if args.rounds:
        with systems(args, DemoOptions()) as found:
            measurement = Measurement(args, found, options, runs, deadline_s)
            measurement.warm_up()
            measurement.play_rounds()
    for workload in args.workloads:
        own = [run for run in runs if run["engines"] == args.engines and run["workload"] == workload]
        print(f"\n{workload}, {args.engines} engine(s)\n\n{table(own, args.systems)}\n")
        for base in [name for name in args.systems if name in OURS_ALL]:
            print("\n".join(f"- {line}" for line in losses(own, args.systems, base)))


if __name__ == "__main__":
    main()
