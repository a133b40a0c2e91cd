"""Play the demo's scarce-memory programs through routers and gateways of others and ours, on real engines.

    git clone https://github.com/ThunderAgent-org/ThunderAgent
    python benchmarks/peers_live.py --peers ThunderAgent \\
        A/bin/vllm-router B/bin/litellm C/bin/sglang-router D/bin/smg

All engines are vLLM with the demo's model and KV memory. The same plain ones serve clients directly (a fixed
split of the programs where there are several), each peer, and `autellix by URL`; `autellix` has its own, with
our scheduler. Each peer runs as its documentation recommends, and its clients name programs in its own way
(peers.py, peers_client.py). In each round all systems play the same programs and arrivals in a seeded order,
with words of their own. Each run is a line of OUT/runs.jsonl; runs that are there are not repeated, so that
`--minutes` may cut the work into parts. Medians come at the end. Wants an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from peers import LOCAL, Peer, name_of, peer

from autellix_backend.engines import guard
from autellix_backend.engines.replica import free_port
from autellix_backend.engines.vllm_command import VLLM_SERVER, device_arguments, environment_defaults
from autellix_backend.settings import child_environment
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.bench.compare import Target, calibrate
from autellix_lab.bench.metrics import summarise
from autellix_lab.bench.replay import CLIENT_CODE, ReplayJob, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.model import DEMO_MODEL_NAME, build_demo_model, demo_model_directory
from autellix_lab.demo.parts import BLOCK_TOKENS, DemoOptions, Part, demo_parts
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.trace import ProgramTrace

GRACE_S, START_S = 5.0, 300.0
PEER_CLIENT = Path(__file__).with_name("peers_client.py")
PEER_CODE = f"import runpy; runpy.run_path({str(PEER_CLIENT)!r}, run_name='__main__')"
KV_BLOCKS = 180
"""Of each engine: scarce KV memory."""
KV_TOKENS = (KV_BLOCKS - 1) * BLOCK_TOKENS
DIRECT, BY_URL, OURS = "vLLM", "autellix by URL", "autellix"
FIGURES = ("mean s", "p50 s", "p95 s", "makespan s", "cached")
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
            time.sleep(0.2)
        raise RuntimeError(f"a server has ended or does not answer; its log is {self.log}")


@contextlib.contextmanager
def starting(
    log: Path, command: Sequence[str], port: int, environment: Mapping[str, str]
) -> Iterator[Server]:
    """Run a server, without waiting for it."""
    process = guard.start(command, GRACE_S, log, child_environment(dict(environment)))
    try:
        yield Server(process, f"http://{LOCAL}:{port}", log)
    finally:
        process.communicate()


@contextlib.contextmanager
def systems(args: argparse.Namespace, options: DemoOptions) -> Iterator[dict[str, list[str]]]:
    """Run the systems; yield the addresses of each."""
    extra = ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(KV_BLOCKS)]
    extra += ["--max-model-len", str(KV_TOKENS), "--enable-prompt-tokens-details"]
    with contextlib.ExitStack() as stack:
        engine = {"max_num_seqs": options.max_num_seqs, "extra_args": extra, "replicas": args.engines}
        ours = stack.enter_context(
            BackendProcess(OURS, "demo", {"gateway": {"port": 0}, "engine": engine}, args.out)
        )
        if OURS in args.systems:
            ours.launch()
        engines = [
            stack.enter_context(plain_engine(args.out, n, options, extra)) for n in range(args.engines)
        ]
        for server in engines:
            server.wait("/health")
        plain = [server.url for server in engines]
        found = {DIRECT: plain}
        started = []
        for made in fronts(args, plain):
            log = args.out / f"{made.name.replace(' ', '-')}.log"
            server = stack.enter_context(starting(log, made.command, made.port, made.environment))
            started.append((made, server))
        for made, server in started:
            server.wait(made.health)
            found[made.name] = [server.url]
        if OURS in args.systems:
            ours.wait_ready()
            found[OURS] = [ours.base_url]
        yield {name: found[name] for name in args.systems}


@contextlib.contextmanager
def plain_engine(out: Path, number: int, options: DemoOptions, extra: Sequence[str]) -> Iterator[Server]:
    """Run a plain vLLM server."""
    model, port = str(build_demo_model(demo_model_directory(), 0)), free_port(LOCAL)
    environment = environment_defaults(model, is_cpu=True)
    command = [*VLLM_SERVER, "--model", model, "--served-model-name", DEMO_MODEL_NAME, "--host", LOCAL]
    command += ["--max-num-seqs", str(options.max_num_seqs), "--port", str(port)]
    command += [*device_arguments(model, extra, environment, is_cpu=True), *extra]
    with starting(out / f"vllm-{number}.log", command, port, environment) as server:
        yield server


def fronts(args: argparse.Namespace, plain: Sequence[str]) -> Iterator[Peer]:
    """Return what stands in front of the plain engines."""
    for program in args.peers:
        if name_of(program) in args.systems:
            yield peer(program, plain, free_port(LOCAL), DEMO_MODEL_NAME, args.out, kv_tokens=KV_TOKENS)
    if BY_URL in args.systems:
        port = free_port(LOCAL)
        command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", "--port", str(port)]
        command += [word for url in plain for word in ("--engine", url)]
        yield Peer(name=BY_URL, command=command, port=port, health="/readyz")


def play(
    name: str, urls: Sequence[str], programs: Sequence[ProgramTrace], arrivals_s: Sequence[float], salt: str
) -> list[CallResult]:
    """Play programs on a system; with several addresses each gets its share, in turn."""
    code = f"import sys; sys.argv = ['', {name!r}]; {PEER_CODE}"
    jobs = [
        ReplayJob(
            base_url=url,
            model=DEMO_MODEL_NAME,
            programs=programs[place :: len(urls)],
            arrivals_s=arrivals_s[place :: len(urls)],
            salt=salt,
        )
        for place, url in enumerate(urls)
    ]
    client_code = CLIENT_CODE if name in (BY_URL, OURS) else code
    with ThreadPoolExecutor(len(jobs)) as pool:
        parts = pool.map(lambda job: replay(job, client_code=client_code), jobs)
        return [result for part in parts for result in part]


def figures_of(
    programs: Sequence[ProgramTrace], arrivals_s: Sequence[float], results: Sequence[CallResult]
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
    latency = run.metrics.get("latency_s", {})
    cached = run.totals["cached_tokens"] / max(1, run.totals["prompt_tokens"])
    figures = [*(latency.get(key) for key in ("mean", "p50", "p95")), run.duration_s, cached]
    return dict(zip(FIGURES, figures, strict=True)) | {
        "lost": run.lost_calls,
        "other length": other,
        "errors": run.errors,
    }


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


def table(runs: Sequence[Run], systems: Sequence[str]) -> str:
    """Return the medians as lines of a Markdown table.

    Beside each mean stand the rounds in which it is less than that of `autellix`, of those that both have.
    """
    workloads = list(dict.fromkeys(run["workload"] for run in runs))
    heads = [f"{workload}: {', '.join(FIGURES)}" for workload in workloads]
    lines = ["| | " + " | ".join(heads) + " | errors, runs |", "|---" * (len(heads) + 2) + "|"]
    for name in systems:
        own = [run for run in runs if run["system"] == name]
        cells = [cell_of(workload, own, runs) for workload in workloads]
        errors = sum(run[kind] for run in own for kind in ERRORS)
        lines += [f"| {name} | " + " | ".join(cells) + f" | {errors}, {len(own)} |"] if own else []
    return "\n".join(lines)


def cell_of(workload: str, runs: Sequence[Run], others: Sequence[Run]) -> str:
    """Return a system's medians of a workload."""
    own = {run["round"]: run for run in runs if run["workload"] == workload}
    ours = {run["round"]: run for run in others if run["workload"] == workload and run["system"] == OURS}
    values = [text_of([run[figure] for run in own.values() if run[figure] is not None]) for figure in FIGURES]
    means = [(own[at]["mean s"], ours[at]["mean s"]) for at in own if at in ours and own[at] is not ours[at]]
    both = [(theirs, our) for theirs, our in means if None not in (theirs, our)]
    if both:
        values[0] += f" ({sum(theirs < our for theirs, our in both)} of {len(both)})"
    return ", ".join(values)


def text_of(values: Sequence[float]) -> str:
    """Return the median; a dash where no run has a value, because each program has lost a call."""
    return f"{median(values):.3g}" if values else "-"


@dataclasses.dataclass(slots=True)
class Measurement:
    """Plays what is missing, and writes it down."""

    args: argparse.Namespace
    urls: Mapping[str, Sequence[str]]
    parts: Mapping[str, Part]
    runs: list[Run]
    deadline_s: float

    def warm_up(self) -> None:
        """Let each system make the calls of programs that fit into memory together."""
        for workload, part in self.parts.items():
            programs = part.calibration
            for name, urls in self.urls.items():
                play(name, urls, programs, [0.0] * len(programs), f"{workload}:warm-up:{time.time()}")

    def play_rounds(self) -> None:
        """Play until all is there or the time is over."""
        for number in range(1, self.args.rounds + 1):
            for workload, part in self.parts.items():
                for name in order_of(list(self.urls), workload, number):
                    if time.monotonic() > self.deadline_s:
                        return
                    if not any(run["system"] == name for run in self._round(workload, number)):
                        self._play(workload, part, number, name)

    def _round(self, workload: str, number: int) -> list[Run]:
        key = (self.args.engines, workload, number)
        return [run for run in self.runs if (run["engines"], run["workload"], run["round"]) == key]

    def _play(self, workload: str, part: Part, number: int, name: str) -> None:
        rate_per_s = self._rate_per_s(workload, part, number)
        arrivals_s = poisson_arrivals(len(part.load.programs), rate_per_s, 0)
        busy = os.getloadavg()[0]
        salt = f"{name}:{number}:{self.args.engines}"
        results = play(name, self.urls[name], part.load.programs, arrivals_s, salt)
        run = {"engines": self.args.engines, "workload": workload, "round": number, "system": name}
        run["programs"] = len(part.load.programs)
        run |= {"rate": rate_per_s, "load": busy} | figures_of(part.load.programs, arrivals_s, results)
        self.runs.append(run)
        with (self.args.out / "runs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        print(json.dumps(run), file=sys.stderr, flush=True)

    def _rate_per_s(self, workload: str, part: Part, number: int) -> float:
        """Return the programs that arrive in a second, by an engine's speed at the beginning of the round."""
        if found := self._round(workload, number):
            return float(found[0]["rate"])
        target = Target(base_url=self.urls[DIRECT][0], model=DEMO_MODEL_NAME)
        slots, tokens = part.calibration_slots, part.calibration_tokens
        salt = f"{workload}:{number}:{time.time()}"
        speed = calibrate(target, part.calibration, slots, tokens, lambda *_: lambda _: None, salt=salt)
        rate: float = self.args.engines * speed.rate_for(part.load.rho, part.load.programs)
        return rate


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, nargs="*", default=[], metavar="PROGRAM")
    parser.add_argument("--systems", nargs="+", help="default: all; `vLLM` is needed for the arrivals")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=["tools", "coding"])
    parser.add_argument("--programs", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no run begins")
    parser.add_argument("--out", type=Path, default=Path("peers-live"))
    args = parser.parse_args()
    deadline_s = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    args.systems = args.systems or [DIRECT, *(name_of(program) for program in args.peers), BY_URL, OURS]
    options = DemoOptions(kv_programs=args.programs, kv_blocks=KV_BLOCKS)
    parts = {name: demo_parts(dataclasses.replace(options, kv_workload=name))[0] for name in args.workloads}
    runs = read_runs(args.out / "runs.jsonl")
    with systems(args, options) as urls:
        measurement = Measurement(args, urls, parts, runs, deadline_s)
        measurement.warm_up()
        measurement.play_rounds()
    own = [run for run in runs if run["engines"] == args.engines and run["workload"] in parts]
    print(f"\n{args.engines} engine(s)\n\n{table(own, args.systems)}")


if __name__ == "__main__":
    main()
