"""What each study of study.py compares: groups of cases, with the engine, the loads and the metrics."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autellix_backend.core.balance import BALANCER_NAMES
from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import COMPARED
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import LLAMA_31_8B, MEMCPY_LAUNCH_S, PRESETS
from autellix_lab.sim.recorded import FEW_SLOTS, FITS, HELD_OUT
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.workload.fit import RECORDED_GAPS, Fit
from autellix_lab.workload.trace import ProgramTrace

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 16
COUNTS = {"chat": 200, "tools": 150, "mixed": 60, "coding": 30, "tree": 12}
"""Programs in a run."""
TOKEN_LATENCY = {"token latency, mean": "token_latency_s.mean"}
LATENCIES = {
    "token latency, mean": "token_latency_s.mean",
    "token latency, p99": "token_latency_s.p99",
    "latency, mean": "latency_s.mean",
    "latency, p95": "latency_s.p95",
    "latency, p99": "latency_s.p99",
}
FOUR = dict(
    zip(("token latency, mean", "latency, mean", "latency, p95", "latency, p99"), COMPARED, strict=True)
)
CACHED = {"cached": "cached_share"}
PREEMPTIONS = {"preemptions per call": "preemptions_per_call"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cases with the same programs and arrivals; the first is the base of the ratios."""

    cases: Mapping[str, SimSettings]
    count_factor: float = 1.0
    """On the programs of a run."""
    arrivals: str = "poisson"
    loads: Sequence[float] = ()
    """In place of the study's and the command line's."""
    gap_s: float = 0.0
    """Median time of a tool, log-normal with sigma 1; 0 for no gaps."""

    def prepare(self, programs: Sequence[ProgramTrace]) -> Sequence[ProgramTrace]:
        """Return the programs, with a gap before each call but a program's first."""
        if not self.gap_s:
            return programs
        rng, median = random.Random("gaps"), math.log(self.gap_s)
        return [
            replace(
                program,
                calls=tuple(
                    replace(call, gap_before_s=rng.lognormvariate(median, 1.0)) if call.parents else call
                    for call in program.calls
                ),
            )
            for program in programs
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Groups of cases on some workloads."""

    groups: Callable[[str], Mapping[str, Group]]
    """By title, for a workload."""
    ratios: Mapping[str, str]
    """Metrics that are compared, by title."""
    loads: Sequence[float]
    counts: Mapping[str, int] = field(default_factory=lambda: COUNTS)
    means: Mapping[str, str] = field(default_factory=dict)
    """Metrics that are shown as they are, by title."""
    fits: Mapping[str, Fit] = field(default_factory=lambda: FITS)


def engine(workload: str, slots: int = SLOTS) -> EngineModel:
    """Return the preset with the slots for a workload."""
    return replace(PRESET, max_num_seqs=FEW_SLOTS.get(workload, slots))


def case(model: EngineModel, policy: str, **changes: Any) -> SimSettings:
    """Return an engine under a policy."""
    return SimSettings(model=model, scheduler=SchedulerConfig(policy=policy, **changes))


# Policies and their settings, preempting as in the paper.


def policies(_costs: Path | None) -> Study:
    """Return the study of the paper's policies; those without a bound on starvation have it by their rule."""

    def groups(workload: str) -> dict[str, Group]:
        model = engine(workload)
        names = ("fcfs", "sjf", "round_robin", "mlfq", "plas", "atlas", "atlas_dag")
        cases = {name: case(model, name, preemption="always") for name in names}
        cases["srpt (clairvoyant)"] = case(model, "srpt", preemption="always", beta=math.inf)
        return {"": Group(cases=cases)}

    held_out = {
        "tau_airline": 100,
        "whowhen": 60,
        "lats_humaneval": 20,
        "mooncake_conv": 300,
        "tot_game24": 12,
        "sharegpt_zh": 200,
    }
    return Study(
        groups=groups,
        ratios=LATENCIES,
        means=PREEMPTIONS | CACHED | {"busy": "utilisation"},
        loads=(0.5, 0.8, 1.0, 1.3, 1.6),
        counts=COUNTS | held_out,
    )


def sensitivity(_costs: Path | None) -> Study:
    """Return the study of one setting changed at a time, for both program policies."""
    changes: dict[str, dict[str, Any]] = {"": {}, ", no demotion": {"demotes": False}}
    for beta in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, math.inf):
        changes[f", beta {beta:g}"] = {"beta": beta}
    for first_s in (0.1, 0.5, 2.0, 8.0):
        for factor, levels in ((2.0, 10), (4.0, 5), (2.0, 5)):
            bounds = tuple(first_s * factor**level for level in range(levels - 1))
            changes[f", {levels} levels from {first_s:g} s by {factor:g}"] = {"bounds": bounds}
    changes |= {f", N {steps}": {"period_steps": steps} for steps in (2, 4, 8, 16)}
    changes[", weighted tokens"] = {"service": "tokens"}

    def groups(workload: str) -> dict[str, Group]:
        model = engine(workload)
        cases = {"fcfs": case(model, "fcfs", preemption="always")}
        for policy in ("plas", "atlas"):
            for name, change in changes.items():
                cases[policy + name] = case(model, policy, preemption="always", **change)
        return {"": Group(cases=cases)}

    return Study(groups=groups, ratios=LATENCIES, means=PREEMPTIONS, loads=(1.3,))


# Memory.


def preemption(_costs: Path | None) -> Study:
    """Return the study of when to preempt a running call."""
    short = {"chat": 10, "tools": 4, "mixed": 8, "tree": 16}
    # Too small for all contexts at these loads, large enough for the longest.

    def groups(workload: str) -> dict[str, Group]:
        part = short[workload]
        ample = engine(workload)
        models = {
            "no bound": replace(ample, kv_blocks=None),
            "preset": ample,
            f"preset / {part}": ample.with_kv(1 / part),
        }
        # `atlas` orders differently from `plas` in these alone.
        policies = ("plas", "atlas") if workload in ("mixed", "tree") else ("plas",)
        ways = [(policy, way) for policy in policies for way in ("always", "priced", "never")]
        return {
            title: Group(
                cases={"fcfs": case(model, "fcfs")}
                | {f"{policy}, {way}": case(model, policy, preemption=way) for policy, way in ways}
            )
            for title, model in models.items()
        }

    return Study(
        groups=groups,
        ratios={
            name: LATENCIES[name] for name in ("token latency, mean", "latency, mean", "token latency, p99")
        },
        means=PREEMPTIONS | CACHED,
        loads=(0.8, 1.0, 1.3),
        counts={"chat": 120, "tools": 150, "mixed": 45, "tree": 8},
    )


def _swap_engines(costs: Path | None) -> tuple[EngineModel, EngineModel, float]:
    """Return the engine, the same with blocks stored beside the steps, and the time to transfer a block."""
    if costs is None:
        model = replace(PRESET, max_num_seqs=64).with_kv(0.125)
        # vLLM 0.6.1, the paper's baseline, copies keys and values of each layer of a block apart.
        return model, model, 2 * LLAMA_31_8B.layers * MEMCPY_LAUNCH_S
    found = json.loads(costs.read_text(encoding="utf-8"))
    plain, storing = (EngineModel(**found[name]) for name in ("engine", "engine_storing"))
    # One and a half of the longest contexts, for all slots together.
    blocks = 3072 // plain.block_tokens
    return replace(plain, kv_blocks=blocks), replace(storing, kv_blocks=blocks), plain.swap_transfer_s


def _measured_fit(workload: str) -> Fit:
    """Return a fit with which contexts stay within those that swap_costs.py measures."""
    fit = FITS.get(workload)
    scale, gaps = (fit.length_scale, fit.gap_rule) if fit else (1.0, RECORDED_GAPS)
    return Fit(length_scale=0.25 * scale, max_context_tokens=2048, gap_rule=gaps)


def swap(costs: Path | None) -> Study:
    """Return the study of what happens to a running call when a better one waits."""
    model, storing, block_s = _swap_engines(costs)
    swapping = replace(model, resume="swap")
    per_block = replace(swapping, swap="per_block", swap_transfer_s=block_s)
    free = replace(swapping, swap_block_s=0.0, swap_transfer_s=0.0)
    cases = {
        "plas, recompute": case(model, "plas", preemption="always"),
        "plas, swap in bulk": case(swapping, "plas", preemption="always"),
        "plas, swap by block": case(per_block, "plas", preemption="always"),
        "plas, swap at no cost": case(free, "plas", preemption="always"),
        "plas, by price": case(replace(storing, resume="host"), "plas", preemption="priced"),
        "plas, no preemption": case(model, "plas", preemption="never"),
        "fcfs, recompute": case(model, "fcfs", preemption="always"),
    }
    groups = {
        "arriving": Group(cases=cases),
        "batch": Group(cases=cases, loads=(1.0,), arrivals="at_once"),
    }
    counts = {"chat": 220, "tools": 60, "tree": 8, "coding": 24}
    return Study(
        groups=lambda _: groups,
        ratios=TOKEN_LATENCY | {"latency, mean": "latency_s.mean", "throughput": "tokens_per_s"},
        means=PREEMPTIONS | {"swapping": "swap_share"} | CACHED,
        loads=(1.5,),
        counts=counts if costs is None else counts | {"chat": 100},
        fits=FITS if costs is None else {name: _measured_fit(name) for name in counts},
    )


def host_tier(_costs: Path | None) -> Study:
    """Return the study of host memory and admission."""

    def group(workload: str, kv_share: float, gap_s: float = 0.0, host_share: float | None = None) -> Group:
        model = engine(workload).with_kv(kv_share)
        blocks = None if host_share is None else PRESET.with_kv(host_share).kv_blocks
        host = replace(model, resume="host", host_blocks=blocks)
        cases = {
            "fcfs": case(model, "fcfs"),
            "fcfs, host": case(host, "fcfs"),
            "default": case(model, "boost"),
            "default, host": case(host, "boost"),
            "boost without admission, host": case(host, "boost", admission="none"),
        }
        return Group(cases=cases, gap_s=gap_s, count_factor=0.6 if gap_s else 1.0)

    def groups(workload: str) -> dict[str, Group]:
        return {
            "KV half": group(workload, 0.5),
            "KV quarter": group(workload, 0.25),
            "KV quarter, gaps 1 s": group(workload, 0.25, 1.0),
            "KV quarter, gaps 5 s": group(workload, 0.25, 5.0),
            "KV half, gaps 5 s": group(workload, 0.5, 5.0),
            "KV quarter, host 0.5": group(workload, 0.25, host_share=0.5),
        }

    means = {"cached": "cached_share", "of these loaded": "loaded_share"}
    return Study(groups=groups, ratios=FOUR, means=means, loads=(0.8, 1.3), counts={"tools": 150})


# Several engines.


def balance_memory(_costs: Path | None) -> Study:
    """Return the study of balancers under admission, over `locality_bounded`."""
    whole, quarter = (1.0, True), (0.25, True)
    memories: dict[str, tuple[tuple[float, bool], ...]] = {
        "tools": (whole, (0.5, True), quarter, (0.5, False)),
        "chat": (whole,),
        "mixed": (whole, quarter),
        "coding": (whole,),
        "tree": (whole,),
        **dict.fromkeys(HELD_OUT, (whole, quarter)),
    }
    sets: dict[str, tuple[float, ...]] = {
        "2 engines": (1.0, 1.0),
        "4 engines": (1.0,) * 4,
        "slow and fast": (0.6, 1.4),
    }
    names = ("locality_bounded", *(name for name in BALANCER_NAMES if name != "locality_bounded"))

    def groups(workload: str) -> dict[str, Group]:
        return {
            f"KV {share:g}{'' if shares else ', private'}, {title}": Group(
                cases={
                    name: SimSettings(
                        model=engine(workload).with_kv(share),
                        scheduler=SchedulerConfig(),
                        engines=len(speeds),
                        engine_speeds=speeds,
                        balancer=name,
                        shares_prefixes=shares,
                    )
                    for name in names
                },
                count_factor=len(speeds),
            )
            for share, shares in memories[workload]
            for title, speeds in sets.items()
        }

    return Study(
        groups=groups,
        ratios=FOUR,
        means=CACHED,
        loads=(0.8, 1.3),
        counts=dict.fromkeys(HELD_OUT, 40) | COUNTS,
    )


STUDIES: Mapping[str, Callable[[Path | None], Study]] = {
    "policies": policies,
    "sensitivity": sensitivity,
    "preemption": preemption,
    "swap": swap,
    "host-tier": host_tier,
    "balance-memory": balance_memory,
}
"""By name; each is given the file of measured costs."""
