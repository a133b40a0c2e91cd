"""The parts of the demo: programs with lists of tools and scarce KV memory, mixed ones with scarce slots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autellix_lab.bench.compare import Load
from autellix_lab.bench.report import Goals
from autellix_lab.workload.fit import GapRule, fit_program
from autellix_lab.workload.generate import SHAPES, generate_programs, generate_shaped
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import read_programs

MAX_CONTEXT_TOKENS = 2048
MAX_SCARCE_CONTEXT_TOKENS = 4000
"""Where KV memory is scarce, contexts are longer; a fiftieth of the 180,000 at which recorded sessions begin
again is a little less."""
BLOCK_TOKENS = 32
"""KV block size, about as on GPUs: vLLM's 128 on a CPU exceed many of the demo's prompts."""
MEMORY_CALIBRATION_TOKENS = 3000
"""The programs that fit into scarce memory generate some 600; the speed in one wave of them varies by 5 %."""
MIN_FITTING = 4
MIN_KV_BLOCKS = 64
"""Fewer hold no prompt of some workloads."""

PLAIN = "fcfs"
"""The policy that is vLLM's own: its engine is vLLM without Autellix."""
MEMORY, SLOTS = "scarce KV memory", "scarce slots"
GOALS: Mapping[str, Goals] = {
    MEMORY: {
        ("token_latency_steps", "mean"): 0.8,
        ("latency_steps", "mean"): 0.8,
        ("latency_steps", "p95"): 0.85,
        ("latency_steps", "p99"): 0.85,
    },
    SLOTS: {
        ("token_latency_steps", "mean"): 0.7,
        ("latency_steps", "mean"): 1.0,
        ("latency_steps", "p95"): 1.0,
        ("latency_steps", "p99"): 1.0,
    },
}
"""The ratios to the baseline that every round of a part should reach, by metric and statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The programs of the scarce-memory part, and how they are made to fit the demo's engine."""

    title: str
    calls: float
    new_tokens: float
    """Factor on what each call adds, beside `lengths`: fewer calls that add more keep a context's length."""
    lengths: float
    gaps: float
    rho: float
    """Offered load, over an engine that never recomputes."""
    kv_blocks: int


SCARCE: Mapping[str, Scale] = {
    # Gaps keep their ratio to the answers.
    "tools": Scale(
        title="agents with shared lists of tools",
        calls=1.0,
        new_tokens=1.0,
        lengths=0.25,
        gaps=0.25,
        rho=1.0,
        kv_blocks=180,
    ),
    # A fiftieth of recorded sessions on Llama 3.1 70B with four A100, KV memory included: contexts, outputs
    # and what sessions share keep their ratios. Gaps keep about the ratio that they have there to the time in
    # which the engine prefills all of its KV memory. All sessions arrive within a few seconds.
    "coding": Scale(
        title="coding sessions",
        calls=0.25,
        new_tokens=4.0,
        lengths=0.02,
        gaps=0.005,
        rho=10.0,
        kv_blocks=293,
    ),
}
"""The workloads of the scarce-memory part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The demo's programs and settings."""

    policies: Sequence[str] = (PLAIN, "boost")
    """The first is the baseline."""
    workload: str = "mixed"
    trace: Path | None = None
    programs: int = 39
    kv_workload: str = "tools"
    """Of `SCARCE`: what runs where KV memory is scarce."""
    kv_programs: int = 32
    length_scale: float = 0.25
    tree_scale: float = 0.2
    rho: float = 2.0
    kv_rho: float | None = None
    """None for that of the workload."""
    kv_blocks: int | None = None
    """None for those of the workload."""
    rounds: int = 3
    max_num_seqs: int = 8
    beta: float = 16.0
    calibration_tokens: int = 6000
    seed: int = 0
    model: str = "demo"
    out: Path = Path("demo-results")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A load that is played on engines of one kind, and how these are warmed up and calibrated."""

    name: str
    title: str
    """Of its programs."""
    load: Load
    length_scale: float
    kv_blocks: int | None
    """KV blocks of the engines; None for as many as there is memory for."""
    calibration: Sequence[ProgramTrace]
    calibration_slots: int
    calibration_tokens: int

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that fit into KV memory; one block is vLLM's null block."""
        return None if self.kv_blocks is None else (self.kv_blocks - 1) * BLOCK_TOKENS


def demo_parts(options: DemoOptions) -> tuple[Part, Part]:
    """Return the part with scarce KV memory and the one with scarce slots.

    Raises:
        TraceError: if the trace cannot be read or holds no program.
    """
    return _memory(options), _slots(options)


def _slots(options: DemoOptions) -> Part:
    if options.trace is None:
        found = generate_programs(
            options.workload, options.programs, options.seed, tree_scale=options.tree_scale
        )
    else:
        found = read_programs(options.trace)[: options.programs]
    programs = [
        fit_program(program, length_scale=options.length_scale, max_context_tokens=MAX_CONTEXT_TOKENS)
        for program in found
    ]
    return Part(
        name="slots",
        title=f"{options.workload} programs"
        if options.trace is None
        else f"programs of {options.trace.name}",
        load=Load(name=SLOTS, rho=options.rho, programs=programs),
        length_scale=options.length_scale,
        kv_blocks=None,
        calibration=programs,
        calibration_slots=options.max_num_seqs,
        calibration_tokens=options.calibration_tokens,
    )


def _memory(options: DemoOptions) -> Part:
    kind, scale = options.kv_workload, SCARCE[options.kv_workload]
    kv_blocks = options.kv_blocks or scale.kv_blocks
    kv_tokens = (kv_blocks - 1) * BLOCK_TOKENS
    # A block less than the memory: prompts have their lengths within the tokenizer's rounding.
    max_tokens = min(MAX_SCARCE_CONTEXT_TOKENS, kv_tokens - BLOCK_TOKENS)
    programs = scaled_programs(kind, scale, max_tokens, options.kv_programs, options.seed)
    fitting = _without_gaps(_fitting(programs, kv_tokens))
    rho = scale.rho if options.kv_rho is None else options.kv_rho
    return Part(
        name="memory",
        title=scale.title,
        load=Load(name=MEMORY, rho=rho, programs=programs),
        length_scale=scale.lengths,
        kv_blocks=kv_blocks,
        calibration=fitting,
        calibration_slots=max(1, len(fitting) // 2),
        calibration_tokens=min(MEMORY_CALIBRATION_TOKENS, options.calibration_tokens),
    )


def scaled_programs(
    kind: str, scale: Scale, max_context_tokens: int, count: int, seed: int
) -> list[ProgramTrace]:
    """Return programs of a kind at a scale, their contexts within a bound (tokens)."""
    shape = replace(
        SHAPES[kind],
        calls=SHAPES[kind].calls.scaled(scale.calls),
        prefill_tokens=SHAPES[kind].prefill_tokens.scaled(scale.new_tokens),
    )
    return [
        fit_program(
            program,
            length_scale=scale.lengths,
            max_context_tokens=max_context_tokens,
            gap_rule=GapRule(math.inf, scale.gaps),
        )
        for program in generate_shaped(kind, shape, count, seed)
    ]


def _fitting(programs: Sequence[ProgramTrace], kv_tokens: int) -> list[ProgramTrace]:
    """Return programs whose contexts fit into memory together, those with equal system prefixes first."""
    sharing: dict[str, list[ProgramTrace]] = {}
    for program in programs:
        prefix = system_prefix(program)
        sharing.setdefault(prefix.key if prefix else program.program_id, []).append(program)
    chosen: list[ProgramTrace] = []
    left = kv_tokens
    for group in sorted(sharing.values(), key=len, reverse=True):
        for position, program in enumerate(group):
            prefix = system_prefix(program)
            own = max(call.context_tokens for call in program.calls)
            left -= own - (prefix.length if prefix and position else 0)
            if left < 0 and len(chosen) >= MIN_FITTING:
                return chosen
            chosen.append(program)
    return chosen


def _without_gaps(programs: Sequence[ProgramTrace]) -> list[ProgramTrace]:
    limit = MAX_SCARCE_CONTEXT_TOKENS
    return [fit_program(item, length_scale=1.0, max_context_tokens=limit) for item in programs]
