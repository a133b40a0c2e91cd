"""Record programs with a gateway, let other tools replay them from our exports, and compare the recordings.

    python benchmarks/others/exports.py --out results --inference-perf ENVIRONMENT/bin/inference-perf \\
        --aiperf ENVIRONMENT/bin/aiperf --guidellm ENVIRONMENT/bin/guidellm

Three small programs run against `autellix serve demo`: a chat, a fan-out with its join, and two branches of
two calls each. `autellix trace export` writes them as weka and OpenTelemetry traces; each tool replays those
against the same gateway, which records that too. Every answer has a length of its own, by which its call is
recognised. Prints a Markdown table, and writes the recordings as `*.jsonl`.

Read for inference-perf 0.7.0, AIPerf 0.13.0 and GuideLLM 0.8.1, each in an environment of its own.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiperf
import inference_perf
import openai
import rig

import autellix
from autellix_backend.cli.main import main as autellix_command
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.bench.prompts import random_words
from autellix_lab.demo.model import build_demo_model, demo_model_directory
from autellix_lab.workload.loaders import load
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import write_traces

TOOL_S = 0.4
"""Time between calls of a thread, as a tool would take."""
PATIENCE_S = 30.0
TIMEOUT_S = 240.0
SEED = 1
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A call on the clock of its recording, in seconds."""

    program: str
    thread: str
    prompt_tokens: int
    start_s: float
    end_s: float

    def overlaps(self, other: PlacedCall) -> bool:
        """Return whether both ran at one time."""
        return self.start_s < other.end_s and other.start_s < self.end_s


def placed(programs: Iterable[ProgramTrace]) -> dict[int, PlacedCall]:
    """Return calls by the tokens of their answers; the first of several that are equal."""
    calls: dict[int, PlacedCall] = {}
    for program in programs:
        for call in program.calls:
            start_s = (program.arrival_s or 0.0) + (call.start_s or 0.0)
            found = PlacedCall(
                program=program.program_id,
                thread=call.thread,
                prompt_tokens=call.prefill_tokens,
                start_s=start_s,
                end_s=start_s + (call.latency_s or 0.0),
            )
            calls.setdefault(call.decode_tokens, found)
    return calls


def differences(recorded: Sequence[ProgramTrace], replayed: Sequence[ProgramTrace]) -> list[str]:
    """Return the cells of a replay's line: what it kept of the recording."""
    before, after = placed(recorded), placed(replayed)
    sent = sum(len(program.calls) for program in replayed)
    kept = before.keys() & after.keys()
    ratios = [after[key].prompt_tokens / before[key].prompt_tokens for key in kept]
    waits = [
        (parent.decode_tokens, call.decode_tokens, call.gap_before_s or 0.0)
        for program in recorded
        for call in program.calls
        for parent in (program.calls[number] for number in call.parents)
    ]
    gaps_s = {
        (parent, key): after[key].start_s - after[parent].end_s
        for parent, key, _ in waits
        if {parent, key} <= kept
    }
    shifts_s = [
        min(gaps_s[pair] for pair in gaps_s if pair[1] == key) - gap_s
        for _, key, gap_s in waits
        if key in kept
    ]
    side_by_side = [
        pair for pair in itertools.combinations(sorted(before), 2) if _are_branches(before, *pair)
    ]
    still = sum(set(pair) <= kept and after[pair[0]].overlaps(after[pair[1]]) for pair in side_by_side)
    together = sum(
        len({after[call.decode_tokens].program for call in program.calls if call.decode_tokens in kept}) == 1
        for program in recorded
    )
    return [
        f"{len(kept)} of {len(before)}" + (f", {sent - len(kept)} more" if sent > len(kept) else ""),
        f"{min(ratios, default=0.0):.2f} to {max(ratios, default=0.0):.2f}",
        f"{sum(gap >= 0 for gap in gaps_s.values())} of {len(waits)}",
        f"{min(shifts_s, default=0.0):+.2f} to {max(shifts_s, default=0.0):+.2f} s",
        f"{still} of {len(side_by_side)}",
        f"{together} of {len(recorded)}",
        f"{_threads(after.values())} of {_threads(before.values())}",
    ]


HEAD = (
    "replay",
    "calls",
    "prompt tokens, of the recorded",
    "waits",
    "gaps, against the recorded",
    "overlaps",
    "programs",
    "threads",
)


def line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _are_branches(calls: dict[int, PlacedCall], one: int, other: int) -> bool:
    return calls[one].program == calls[other].program and calls[one].overlaps(calls[other])


def _threads(calls: Iterable[PlacedCall]) -> int:
    return len({(call.program, call.thread) for call in calls})


class Asker:
    """Sends the calls of one program, each with an answer of a length of its own."""

    def __init__(self, client: openai.OpenAI, seed: int) -> None:
        self._client, self._rng = client, random.Random(seed)

    def user(self, words: int) -> Message:
        """Return a message of so many words."""
        return {"role": "user", "content": " ".join(random_words(self._rng, words))}

    def ask(self, messages: Sequence[Message], tokens: int) -> list[Message]:
        """Return the messages with their answer of so many tokens."""
        answer = self._client.chat.completions.create(
            model=rig.DEMO_MODEL_NAME,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=tokens,
            extra_body={"ignore_eos": True, "min_tokens": tokens},
        )
        time.sleep(TOOL_S)
        return [*messages, {"role": "assistant", "content": answer.choices[0].message.content or ""}]


def chat(asker: Asker) -> None:
    """Four calls, each of which repeats the one before."""
    messages: list[Message] = []
    for turn in range(4):
        messages = asker.ask([*messages, asker.user(150)], 30 + turn)


def fan_out(asker: Asker) -> None:
    """A draft, three critics of it side by side, and a call that reads them."""
    draft = asker.ask([asker.user(200)], 41)
    with ThreadPoolExecutor() as pool:
        notes = list(pool.map(lambda n: asker.ask([*draft, asker.user(100 + 20 * n)], 42 + n), range(3)))
    joined = [message for note in notes for message in note[-2:]]
    asker.ask([*draft, *joined, asker.user(70)], 45)


def branches(asker: Asker) -> None:
    """A plan, two branches of two calls each, and a call that reads both."""

    def branch(number: int) -> list[Message]:
        first = asker.ask([*plan, asker.user(120 + 10 * number)], 52 + 2 * number)
        return asker.ask([*first, asker.user(80)], 53 + 2 * number)

    plan = asker.ask([asker.user(180)], 51)
    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(branch, range(2)))
    asker.ask([*plan, *(message for end in ends for message in end[-2:]), asker.user(60)], 56)


PROGRAMS: tuple[Callable[[Asker], None], ...] = (chat, fan_out, branches)
CALLS = 4 + 5 + 6


def run_programs(url: str) -> None:
    """Run the programs one after another."""
    # Else the client would learn by the first answer who it talks to.
    autellix.configure(f"{url}/v1")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused")
    for number, program in enumerate(PROGRAMS):
        with autellix.program(program.__name__):
            program(Asker(client, number))


def guidellm_scenario(system: rig.System, form: str, lines: Path) -> dict[str, object]:
    """Return GuideLLM's configuration for a file with a trace a line."""
    return {
        "backend": {
            "kind": "openai_http",
            "target": system.url,
            "model": rig.DEMO_MODEL_NAME,
            "http2": False,
        },
        "profile": {"kind": "replay"},
        "tokenizer": {"kind": "huggingface_auto", "model": str(system.tokenizer)},
        "data": [{"kind": form, "source": {"kind": "json_file", "path": str(lines)}}],
        "seed": {"kind": "static", "value": SEED},
        "outputs": [{"kind": "json", "path": str(lines.with_name(f"guidellm-{form}-report.json"))}],
    }


def replays(args: argparse.Namespace, system: rig.System, out: Path) -> dict[str, list[str]]:
    """Return each tool's command by the name of its replay, with the files that it reads written."""
    commands: dict[str, list[str]] = {}
    weka, otel, count = out / "weka", out / "otel", len(PROGRAMS)
    if args.inference_perf:
        for folder in (weka, otel):
            file = out / f"inference-perf-{folder.name}.json"
            # JSON is YAML.
            rig.write_json(
                file,
                inference_perf.configuration(system, folder, folder.name, out / "reports", SEED, count),
            )
            command = [str(args.inference_perf), "--config_file", str(file)]
            commands[f"inference-perf, {folder.name}"] = command
    if args.aiperf:
        reports = out / "aiperf"
        command = aiperf.command_of(args.aiperf, system, weka, reports, SEED, count, count)
        commands["AIPerf, weka"] = command
    if args.guidellm:
        for folder in (weka, otel):
            lines, file = out / f"{folder.name}.jsonl", out / f"guidellm-{folder.name}.json"
            texts = (trace.read_text(encoding="utf-8") for trace in sorted(folder.glob("*.json")))
            lines.write_text("".join(texts), encoding="utf-8")
            rig.write_json(file, {"spec": guidellm_scenario(system, folder.name, lines)})
            command = [str(args.guidellm), "run", "--config", str(file), "--disable-console-interactive"]
            commands[f"GuideLLM, {folder.name}"] = command
    return commands


class Recorder:
    """The call log of a gateway, read from one mark to the next."""

    def __init__(self, log: Path) -> None:
        self._log, self._read = log, 0

    def take(self, name: str, calls: int) -> list[ProgramTrace]:
        """Return the programs of the calls since the last time, once so many have settled.

        Waits `PATIENCE_S` for them, and writes the programs as `name.jsonl` beside the log.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while len(lines := self._lines()) < calls and time.monotonic() < deadline_s:
            time.sleep(0.2)
        self._read += len(lines)
        part = self._log.with_name(f"{name}-calls.jsonl")
        part.write_text("".join(lines), encoding="utf-8")
        programs = load(part, "call_log") if lines else []
        write_traces(self._log.with_name(f"{name}.jsonl"), programs)
        return programs

    def _lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8").splitlines(keepends=True)[self._read :]


def run(args: argparse.Namespace) -> None:
    """Record, export, replay and compare."""
    out: Path = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    log = out / "calls.jsonl"
    log.unlink(missing_ok=True)
    settings: dict[str, dict[str, Any]] = {
        "gateway": {"port": 0},
        "engine": {"max_num_seqs": 8},
        "observe": {"call_log": str(log)},
    }
    tokenizer = build_demo_model(demo_model_directory())
    with BackendProcess("recorder", "demo", settings, out) as backend:
        backend.launch()
        backend.wait_ready()
        system = rig.System(rig.OURS, backend.base_url, backend.base_url, tokenizer)
        recorder = Recorder(log)
        run_programs(system.url)
        recorded = recorder.take("recorded", CALLS)
        for form in ("weka", "otel"):
            autellix_command(
                ["trace", "export", f"--{form}", str(out / "recorded.jsonl"), "-o", str(out / form)]
            )
        print(line(HEAD), line(["---"] * len(HEAD)), sep="\n")
        for name, command in replays(args, system, out).items():
            folder = out / name.replace(", ", "-")
            folder.mkdir(exist_ok=True)
            rig.run_tool(command, folder, aiperf.VARIABLES, TIMEOUT_S)
            replayed = recorder.take(folder.name, CALLS)
            print(line([name, *differences(recorded, replayed)]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder for recordings, exports and logs")
    for tool in ("inference-perf", "aiperf", "guidellm"):
        parser.add_argument(f"--{tool}", type=Path, help="its executable; without it, it replays nothing")
    run(parser.parse_args())
