"""Plain vLLM and Autellix beside each other, for the load generators that others wrote.

Both serve the demo's model with the same memory and slots. Each tool has a script here, which starts the tool
in an environment of its own and keeps the report that it writes as it is; what the engines counted themselves
is kept beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from autellix_backend.engines import guard
from autellix_backend.engines.replica import free_port
from autellix_backend.engines.vllm_command import VLLM_SERVER, device_arguments, environment_defaults
from autellix_backend.settings import child_environment
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.demo.model import (
    DEMO_MODEL_NAME as DEMO_MODEL_NAME,
)
from autellix_lab.demo.model import (
    MAX_POSITIONS,
    build_demo_model,
    demo_model_directory,
)
from autellix_lab.demo.parts import BLOCK_TOKENS
from autellix_lab.sim.markdown import markdown_table

LOCAL, GRACE_S = "127.0.0.1", 5.0
PLAIN, OURS = "vllm", "autellix"
COUNTERS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "answer_tokens": "vllm:generation_tokens_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
}
"""The engine's own, by the name under which a report shows them."""
_CALLS = re.compile(r'^autellix_calls_total\{.*outcome="(\w+)".*source="([\w-]+)".*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class System:
    """One of those that are compared: where a tool sends its calls, and the engine that answers."""

    name: str
    url: str
    engine_url: str
    tokenizer: Path
    """A folder, which is the model's."""


def read_counters(metrics: str) -> dict[str, int]:
    """Sum the engine's counters in the text of its metrics."""
    sums = dict.fromkeys(COUNTERS, 0)
    for line in metrics.splitlines():
        for key, name in COUNTERS.items():
            if line.startswith((f"{name} ", f"{name}{{")):
                sums[key] += round(float(line.rpartition(" ")[2]))
    return sums


def counters_of(system: System) -> dict[str, int]:
    """Ask a system's engine what it has counted since it started."""
    return read_counters(_get(f"{system.engine_url}/metrics"))


def read_calls(metrics: str) -> Counter[str]:
    """Sum a gateway's settled calls by their outcome and by what named their program."""
    sums: Counter[str] = Counter()
    for outcome, source, value in _CALLS.findall(metrics):
        sums[f"{outcome}, {source}"] += round(float(value))
    return sums


@dataclass(frozen=True, slots=True)
class Seen:
    """What a gateway has seen since it started."""

    programs: Mapping[str, int]
    """How many calls each has finished, those that ended among them."""
    calls: Counter[str]

    def since(self, before: Seen) -> dict[str, object]:
        """Return the programs and the calls that are not in an earlier record."""
        sizes = [calls for program, calls in self.programs.items() if program not in before.programs]
        return {
            "programs": len(sizes),
            "programs_by_calls": {str(calls): count for calls, count in sorted(Counter(sizes).items())},
            "calls": dict(self.calls - before.calls),
        }


def seen_by(system: System) -> Seen:
    """Ask a gateway for its programs and calls."""
    lists = [_get(f"{system.url}/autellix/v1/{name}?limit=1000") for name in ("programs", "history")]
    rows = (row for text in lists for row in json.loads(text)["programs"])
    programs = {row["program_id"]: row["finished_calls"] for row in rows}
    return Seen(programs, read_calls(_get(f"{system.url}/metrics")))


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


@contextlib.contextmanager
def plain_vllm(log: Path, arguments: list[str], model: Path) -> Iterator[str]:
    """Run vLLM as its users do; yield its address once it answers."""
    environment = environment_defaults(str(model), is_cpu=True)
    port = free_port(LOCAL)
    command = [*VLLM_SERVER, "--model", str(model), "--served-model-name", DEMO_MODEL_NAME, "--host", LOCAL]
    command += ["--port", str(port), *arguments]
    command += device_arguments(str(model), arguments, environment, is_cpu=True)
    process = guard.start(command, GRACE_S, log, child_environment(environment))
    url = f"http://{LOCAL}:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                yield url
                return
            time.sleep(0.2)
        raise RuntimeError(f"vLLM has ended; its log is {log}")
    finally:
        process.communicate()


@contextlib.contextmanager
def systems(out: Path, kv_blocks: int, slots: int) -> Iterator[list[System]]:
    """Run both systems, each with one engine of so many KV blocks and slots."""
    out.mkdir(parents=True, exist_ok=True)
    model = build_demo_model(demo_model_directory())
    memory = ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(kv_blocks)]
    length = min((kv_blocks - 1) * BLOCK_TOKENS, MAX_POSITIONS)
    memory += ["--max-model-len", str(length), "--enable-prompt-tokens-details"]
    settings: dict[str, dict[str, Any]] = {
        "gateway": {"port": 0},
        "engine": {"max_num_seqs": slots, "extra_args": memory},
    }
    plain = plain_vllm(out / "vllm.log", [*memory, "--max-num-seqs", str(slots)], model)
    with BackendProcess(OURS, "demo", settings, out) as backend, plain as plain_url:
        backend.launch()
        backend.wait_ready()
        with urllib.request.urlopen(f"{backend.base_url}/autellix/v1/engines", timeout=30) as answer:
            engine_url = json.load(answer)["engines"][0]["base_url"]
        yield [
            System(PLAIN, plain_url, plain_url, model),
            System(OURS, backend.base_url, engine_url, model),
        ]


def run_tool(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 900.0,
    directory: Path | None = None,
) -> None:
    """Run a tool in `directory` to its end, its output in `tool.log` of `folder`.

    Raises:
        subprocess.CalledProcessError: if it fails.
        subprocess.TimeoutExpired: if it runs on after `timeout_s`.
    """
    # The tool has an environment of its own: not this one's Python path, nor its virtual environment.
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    with (folder / "tool.log").open("wb") as log:
        subprocess.run(
            command,
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment | dict(variables or {}),
            cwd=directory,
            timeout=timeout_s,
        )


def compare(args: argparse.Namespace, tool: Callable[[System, int, Path], None]) -> None:
    """Run a tool against both systems with each seed, in the other order with every second one.

    `tool` writes its reports into the folder that it is given; `engine.json` beside them has the engine's
    counts and the seconds that the tool ran, and `gateway.json` what our gateway has seen. A run whose folder
    has `engine.json` is not made again.
    """
    with systems(args.out / "servers", args.kv_blocks, args.slots) as both:
        for turn, seed in enumerate(args.seeds):
            for system in both if turn % 2 == 0 else reversed(both):
                folder = args.out / f"{system.name}-{seed}"
                if (folder / "engine.json").exists():
                    continue
                folder.mkdir(parents=True, exist_ok=True)
                seen = seen_by(system) if system.name == OURS else None
                before, began_s = counters_of(system), time.monotonic()
                tool(system, seed, folder)
                took_s = round(time.monotonic() - began_s, 1)
                counted = {key: value - before[key] for key, value in counters_of(system).items()}
                if seen:
                    write_json(folder / "gateway.json", seen_by(system).since(seen))
                text = write_json(folder / "engine.json", counted | {"seconds": took_s})
                print(folder.name, text.replace("\n", ""), flush=True)


def table(out: Path, seeds: Sequence[int], figures_of: Callable[[Path], Mapping[str, float]]) -> list[str]:
    """Return a Markdown table of runs that were made: figures of both systems and ratios, by seed.

    `figures_of` reads a run's folder; of each figure less is better. The figure with the worst mean ratio is
    first.
    """
    pairs = {seed: [out / f"{name}-{seed}" for name in (PLAIN, OURS)] for seed in seeds}
    runs = {
        seed: [_with_computed(figures_of(folder), folder) for folder in folders]
        for seed, folders in pairs.items()
        if all((folder / "engine.json").exists() for folder in folders)
    }
    names = list(next(iter(runs.values()))[0]) if runs else []
    ratios = {name: [ours[name] / plain[name] for plain, ours in runs.values()] for name in names}
    rows = [
        (
            name,
            *(
                f"{_shown(plain[name])} → {_shown(ours[name])}, {ratio:.2f}"
                for (plain, ours), ratio in zip(runs.values(), ratios[name], strict=True)
            ),
        )
        for name in sorted(names, key=lambda name: -fmean(ratios[name]))
    ]
    return markdown_table((f"{PLAIN} → {OURS}, ratio", *(f"seed {seed}" for seed in runs)), rows)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _with_computed(figures: Mapping[str, float], folder: Path) -> dict[str, float]:
    counted = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
    return {**figures, "prompt tokens computed": counted["prompt_tokens"] - counted["cached_tokens"]}


def write_json(path: Path, value: object) -> str:
    """Write a small report; return its text."""
    text = json.dumps(value, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    return text


def arguments(description: str | None, kv_blocks: int, slots: int = 8) -> argparse.ArgumentParser:
    """Return a parser of what all scripts share; a script adds its own."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder for reports and logs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--kv-blocks", type=int, default=kv_blocks, help=f"of {BLOCK_TOKENS} tokens")
    parser.add_argument("--slots", type=int, default=slots, help="calls that an engine runs at once")
    return parser
