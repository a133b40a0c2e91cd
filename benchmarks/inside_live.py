"""Ten agents at once on one real CPU engine: plain vLLM, our middleware inside it, and a gateway before it.

Run: `inside_live.py [--rounds 3] [--out FILE]`. Each server starts once, with the same model and two batch
slots; the agents are one process that imports `autellix` and knows of no program. Three agents make eight
calls of 48 tokens, seven make two of 12. Reported for each server: the programs that it saw, the means of the
programs' latencies in seconds and in the engine's steps (its own count of iterations, read at the end of each
program), and the median of a single call of one token, one after the other. The answers have to be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.drills.processes import Server, Spec  # noqa: E402
from tests.ports import free_port  # noqa: E402

from autellix_backend.cli.vllm import vllm_command  # noqa: E402
from autellix_backend.engines.vllm_command import (  # noqa: E402
    SCHEDULER_CLASS,
    VLLM_SERVER,
    environment_defaults,
)
from autellix_lab.demo.model import DEMO_MODEL_NAME, build_demo_model  # noqa: E402

SLOTS, START_S, OFFSET = 2, 900.0, 1000
SECRET = "the secret of this benchmark"
LONG, SHORT = (8, 48), (2, 12)
"""Calls, and tokens of each."""
SIZES = (LONG, SHORT, SHORT, LONG, SHORT, SHORT, LONG, SHORT, SHORT, SHORT)
SINGLE_CALLS = 60
STEPS = re.compile(r"^vllm:iteration_tokens_total_count\{.*\} ([0-9.e+]+)$", re.MULTILINE)
TOOLS: list[Any] = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


def engine(kind: str, model: Path, folder: Path) -> Server:
    """Return the server of a kind, not started."""
    port = free_port(OFFSET)
    options = ["--served-model-name", DEMO_MODEL_NAME, "--enforce-eager", "--max-num-seqs", str(SLOTS)]
    options += ["--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
    options += ["--enable-auto-tool-choice", "--tool-call-parser", "granite"]
    command = [*VLLM_SERVER, "--model", str(model), *options]
    if kind == "inside":
        command = vllm_command(str(model), options, script=None, is_cpu=True)
    elif kind == "gateway":
        section = {"autellix": {"report_address": f"tcp://127.0.0.1:{port + OFFSET}"}}
        command += ["--scheduler-cls", SCHEDULER_CLASS, "--additional-config", json.dumps(section)]
    environment = {**environment_defaults(str(model), is_cpu=True), "AUTELLIX_ENGINE_REPORT_SECRET": SECRET}
    return Server(
        Spec(
            name=kind,
            command=command,
            port=port,
            health_path="/health",
            log=folder / f"{kind}.log",
            environment=environment,
            start_s=START_S,
        )
    )


def gateway(behind: Server, folder: Path) -> Server:
    """Return a gateway before an engine."""
    port = free_port()
    command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", "--engine", behind.url]
    return Server(
        Spec(
            name="autellix serve",
            command=[*command, "--port", str(port)],
            port=port,
            health_path="/readyz",
            log=folder / "serve.log",
            environment={"AUTELLIX_ENGINE_REPORT_SECRET": SECRET, "AUTELLIX_CACHE_DIR": str(folder)},
            start_s=START_S,
        )
    )


def steps_of(url: str) -> float:
    """Return the iterations of an engine so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        found = STEPS.search(answer.read().decode())
    return float(found[1]) if found else 0.0


async def run_agents(url: str, engine_url: str, seed: int) -> dict[str, Any]:
    """Run the agents, and return what they saw."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:

        async def call(messages: list[Any], tokens: int) -> tuple[str, str]:
            raw = await client.chat.completions.with_raw_response.create(
                model=DEMO_MODEL_NAME,
                messages=messages,
                max_tokens=tokens,
                temperature=0,
                tools=TOOLS,
                extra_body={"ignore_eos": True},
            )
            content = raw.parse().choices[0].message.content or ""
            return content, raw.headers.get("x-autellix-program-id", "")

        async def agent(number: int) -> dict[str, Any]:
            calls, tokens = SIZES[number]
            messages: list[Any] = [{"role": "user", "content": f"task {seed}.{number}"}]
            programs = set()
            for turn in range(calls):
                content, program = await call(messages, tokens)
                programs.add(program)
                messages += [
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": f"go on {turn}"},
                ]
            end_s = time.perf_counter()
            steps = await asyncio.to_thread(steps_of, engine_url)
            answers = [each["content"] for each in messages[1::2]]
            return {"programs": sorted(programs), "end_s": end_s, "steps": steps, "answers": answers}

        # The client has met the server, and the engine has compiled.
        for _ in range(3):
            await call([{"role": "user", "content": "warm"}], 4)
        single = []
        for number in range(SINGLE_CALLS):
            begin_s = time.perf_counter()
            await call([{"role": "user", "content": f"single {number}"}], 1)
            single.append(time.perf_counter() - begin_s)
        begin_s, begin = time.perf_counter(), steps_of(engine_url)
        agents = await asyncio.gather(*(agent(number) for number in range(len(SIZES))))
    for each in agents:
        each["end_s"] -= begin_s
        each["steps"] -= begin
    return {"single_s": single, "agents": agents}


def client(url: str, engine_url: str, seed: int) -> None:
    """Run the agents in this process, as a user's program with one line of ours."""
    import autellix  # noqa: F401

    print(json.dumps(asyncio.run(run_agents(url, engine_url, seed))))


def measure(kind: str, model: Path, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Start a server, let the agents call it some times, and stop it."""
    server = engine(kind, model, folder)
    front = gateway(server, folder) if kind == "gateway" else server
    found = []
    try:
        server.start()
        if front is not server:
            front.start()
        for seed in range(rounds):
            command = [sys.executable, __file__, "--client", front.url, "--engine", server.url]
            done = subprocess.run(
                [*command, "--seed", str(seed)],
                env={**os.environ, "AUTELLIX_BASE_URL": front.url},
                stdout=subprocess.PIPE,
                check=True,
            )
            found.append(json.loads(done.stdout))
    finally:
        front.kill()
        server.kill()
    return found


def row(kind: str, rounds: list[dict[str, Any]], plain: list[dict[str, Any]]) -> str:
    """Return a row of the table."""
    agents = [each for one in rounds for each in one["agents"]]
    apart = [len({each["programs"][-1] for each in one["agents"]}) for one in rounds]
    whole = sum(len(each["programs"]) == 1 for each in agents)
    are_equal = [[each["answers"] for each in one["agents"]] for one in rounds] == [
        [each["answers"] for each in one["agents"]] for one in plain
    ]
    shorts = [
        each for one in rounds for size, each in zip(SIZES, one["agents"], strict=True) if size is SHORT
    ]
    longs = [each for one in rounds for size, each in zip(SIZES, one["agents"], strict=True) if size is LONG]
    single_ms = 1000 * statistics.median(each for one in rounds for each in one["single_s"])
    cells = [kind, f"{apart}", f"{whole} of {len(agents)}", "yes" if are_equal else "NO"]
    cells += [f"{statistics.mean(each['steps'] for each in group):.0f}" for group in (agents, shorts, longs)]
    cells += [f"{statistics.mean(each['end_s'] for each in group):.2f}" for group in (agents, shorts, longs)]
    return " | ".join(["", *cells, f"{single_ms:.2f}", ""]).strip()


def main() -> None:
    """Measure the three servers, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep all figures in this file")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client(options.client, options.engine, options.seed)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build_demo_model(folder / "model")
        kinds = ("plain", "inside", "gateway")
        found = {kind: measure(kind, model, folder, options.rounds) for kind in kinds}
    if options.out:
        options.out.write_text(json.dumps(found))
    print(
        "| server | programs | agents with one program | equal answers | steps: all | short | long ", end=""
    )
    print("| seconds: all | short | long | single call, ms |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for kind in kinds:
        print(row(kind, found[kind], found["plain"]))


if __name__ == "__main__":
    main()
