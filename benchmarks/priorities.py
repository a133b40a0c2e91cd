"""Simulates an interactive stream beside a flood of batch programs, with and without their priorities.

The stream is chats with thinking people, by Poisson arrivals. The flood is all there at time zero: agents of
several calls, coding agents with long contexts and tools, or single calls with long prompts or long answers.
Each is played alone and beside the other, on the same engine, and the figures are ratios of the two: the 95th
percentile of the stream's calls, and the flood's throughput up to its end.

    priorities.py [--seeds 3] [--engine llama3.1-8b-h100] [--rate 0.2] [--batch 200] [--token-budget 2048]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.priority import Priority
from autellix_lab.sim.engine import Decision
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import DRAWN_GAPS
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.sim.table import format_interval
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.fit import draw_gaps, fit_program
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.heavy_tail import HeavyTail
from autellix_lab.workload.statistics import confidence_interval, percentile
from autellix_lab.workload.trace import CallTrace, ProgramTrace

STREAM, FLOOD = "stream", "flood"
STATED = {STREAM: Priority.INTERACTIVE, FLOOD: Priority.BATCH}
CASES: Mapping[str, tuple[str, Mapping[str, Priority]]] = {
    "`fcfs`": ("fcfs", {}),
    "`boost`": ("boost", {}),
    "`boost`, with priorities": ("boost", STATED),
}
"""The policy of a case, and the priorities by source."""
SINGLE_CALLS = {
    "long prompts": (HeavyTail(2000, 8192, 0.8), HeavyTail(300, 2048, 0.6)),
    "long answers": (HeavyTail(200, 1000, 0.8), HeavyTail(600, 4096, 0.6)),
}
"""The prompts and answers of a flood of single calls."""
FLOODS = ("agents", "coding agents", *SINGLE_CALLS)
SIZES = {"agents": 1.0, "coding agents": 0.2, "long prompts": 3.0, "long answers": 3.0}
"""The programs of a flood, as a share of the agents of one: sessions are long, and single calls short."""

Timed = list[tuple[float, ProgramTrace]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one run measured of the two."""

    latencies_s: Sequence[float]
    """Of the stream's calls that arrived while the flood lasted, or of all without one."""
    waits_s: Sequence[float]
    """From their arrival to their slot."""
    flood_s: float
    """The end of the flood's last program; 0 without one."""


def stream_of(seconds: float, rate: float, seed: int) -> Timed:
    """Return chats that arrive over this time."""
    count = max(2, round(seconds * rate))
    chats = generate_programs("chat", count, seed)
    gaps = DRAWN_GAPS["chat"]
    programs = [draw_gaps(replace(program, source=STREAM), gaps) for program in chats]
    return list(zip(poisson_arrivals(count, rate, seed), programs, strict=True))


def flood_of(kind: str, count: int, seed: int) -> Timed:
    """Return the programs of a flood, all at time zero; `count` is that of agents."""
    count = round(SIZES[kind] * count)
    if kind == "agents":
        programs = generate_programs("react", count, seed)
    elif kind == "coding agents":
        sessions = generate_programs("coding", count, seed)
        fitted = [fit_program(each, length_scale=0.3, max_context_tokens=60_000) for each in sessions]
        programs = [draw_gaps(program, DRAWN_GAPS["tools"]) for program in fitted]
    else:
        programs = [single_call(kind, number, seed) for number in range(count)]
    return [(0.0, replace(program, source=FLOOD)) for program in programs]


def single_call(kind: str, number: int, seed: int) -> ProgramTrace:
    """Return a program of one call."""
    rng = random.Random(f"{kind}:{seed}:{number}")
    prompt, answer = SINGLE_CALLS[kind]
    call = CallTrace(
        id=0,
        parents=(),
        thread="0",
        prefill_tokens=prompt.draw(rng),
        decode_tokens=answer.draw(rng),
    )
    return ProgramTrace(source=FLOOD, program_id=f"{kind}_{seed}_{number}", calls=(call,))


def play(programs: Timed, settings: SimSettings) -> Played:
    """Simulate programs, and measure both kinds."""
    programs = sorted(programs, key=lambda each: each[0])
    decisions: list[Decision] = []
    ends_s: list[float] = []
    simulate(
        programs,
        settings,
        on_program=lambda record: ends_s.append(record.finish_s) if record.source == FLOOD else None,
        log=lambda _, decision: decisions.append(decision),
    )
    return measured(decisions, [program.source for _, program in programs], max(ends_s, default=0.0))


def measured(decisions: Sequence[Decision], sources: Sequence[str], flood_s: float) -> Played:
    """Return the figures of a run.

    Args:
        decisions: Its decisions; the id of a call begins with the number of its program.
        sources: The sources of the programs by their number.
        flood_s: The end of the flood; 0 without one.
    """
    arrived: dict[str, float] = {}
    latencies_s: list[float] = []
    waits_s: dict[str, float] = {}
    for event, call_id, at_s in decisions:
        if sources[int(call_id.partition(".")[0])] != STREAM:
            continue
        if event == "arrive":
            arrived[call_id] = at_s
        elif flood_s and arrived[call_id] > flood_s:
            continue
        elif event == "start":
            waits_s.setdefault(call_id, at_s - arrived[call_id])
        elif event == "finish":
            latencies_s.append(at_s - arrived[call_id])
    return Played(latencies_s=latencies_s, waits_s=list(waits_s.values()), flood_s=flood_s)


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile of at least one value."""
    return percentile(sorted(values), 0.95)


def compare(settings: SimSettings, kind: str, arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Return the figures of one case and seed."""
    flood = flood_of(kind, arguments.batch, seed)
    flood_alone = play(flood, settings)
    stream = stream_of(1.5 * flood_alone.flood_s, arguments.rate, seed)
    alone, beside = play(stream, settings), play(stream + flood, settings)
    return {
        "p95 alone (s)": p95(alone.latencies_s),
        "p95 beside": p95(beside.latencies_s) / p95(alone.latencies_s),
        "p95 wait (s)": p95(beside.waits_s),
        "max wait (s)": max(beside.waits_s),
        "throughput beside": flood_alone.flood_s / beside.flood_s,
        "flood alone (s)": flood_alone.flood_s,
    }


def rows_of(kind: str, arguments: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return a row for each case."""
    model = replace(PRESETS[arguments.engine], token_budget=arguments.token_budget)
    rows = []
    for case, (policy, priorities) in CASES.items():
        settings = SimSettings(model=model, scheduler=SchedulerConfig(policy=policy), priorities=priorities)
        found = [compare(settings, kind, arguments, seed) for seed in range(arguments.seeds)]
        cells = [format_interval(confidence_interval([each[name] for each in found]), 3) for name in found[0]]
        rows.append((kind, case, *cells))
        print(rows[-1], flush=True)
    return rows


TITLES = ("flood", "case", "p95 alone (s)", "p95 beside", "p95 wait (s)", "max wait (s)", "throughput beside")


def main() -> None:
    """Play both floods."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engine", default="llama3.1-8b-h100", choices=tuple(PRESETS))
    parser.add_argument("--rate", type=float, default=0.2, help="chats per second")
    parser.add_argument("--batch", type=int, default=200, help="agents of a flood")
    parser.add_argument("--token-budget", type=int, default=2048, help="most tokens in one step")
    arguments = parser.parse_args()
    rows = [row for kind in FLOODS for row in rows_of(kind, arguments)]
    print("\n".join(markdown_table((*TITLES, "flood alone (s)"), rows)))


if __name__ == "__main__":
    main()
