"""Seeded agent sessions as the traces that inference-perf and AIPerf replay.

Three of four are coding sessions at the demo's scale, whose contexts grow from call to call; the fourth is a
session that spawns sub-agents and joins them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from autellix_lab.demo.parts import MAX_SCARCE_CONTEXT_TOKENS, SCARCE, Scale, scaled_programs
from autellix_lab.report.otel import otel_trace
from autellix_lab.report.weka import weka_session
from autellix_lab.workload.trace import CallTrace, ProgramTrace

SESSIONS, PRESENT = 40, 10
"""Sessions of a run, and how many of them are present at any time."""
KV_BLOCKS = 180
TOKEN_S = 0.01
"""The recorded time of a token; tools replay the gaps between calls, which do not depend on it."""
OTEL, WEKA = "otel", "weka"
FORMATS = {OTEL: otel_trace, WEKA: weka_session}
FAN_OUT = Scale(
    title="sessions with sub-agents",
    calls=0.4,
    new_tokens=1.0,
    lengths=0.25,
    gaps=0.005,
    rho=1.0,
    kv_blocks=KV_BLOCKS,
)


def sessions(count: int, seed: int) -> list[ProgramTrace]:
    """Return the sessions of a seed, with the times of their calls."""
    coding = _programs("coding", SCARCE["coding"], count, seed)
    wide = _programs("map_reduce", FAN_OUT, count, seed)
    return [wide[number] if number % 4 == 3 else coding[number] for number in range(count)]


def write_sessions(folder: Path, count: int, seed: int, kind: str) -> None:
    """Write a file of a kind of `FORMATS` for each session."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, program in enumerate(sessions(count, seed)):
        (folder / f"{number:04}.json").write_text(json.dumps(FORMATS[kind](program)), encoding="utf-8")


def _programs(kind: str, scale: Scale, count: int, seed: int) -> list[ProgramTrace]:
    return list(map(with_times, scaled_programs(kind, scale, MAX_SCARCE_CONTEXT_TOKENS, count, seed)))


def with_times(program: ProgramTrace) -> ProgramTrace:
    """Return a program whose calls take TOKEN_S for each output token and start after their parents' gap."""
    calls: list[CallTrace] = []
    ends_s: list[float] = []
    for call in program.calls:
        start_s = max((ends_s[parent] for parent in call.parents), default=0.0) + (call.gap_before_s or 0.0)
        latency_s = TOKEN_S * call.decode_tokens
        ends_s.append(start_s + latency_s)
        calls.append(replace(call, start_s=start_s, latency_s=latency_s))
    return replace(program, calls=tuple(calls))
