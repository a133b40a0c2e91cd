"""`autellix whatif PROGRAM`: estimate how long an ended program would have taken under another policy."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from autellix_backend.cli.remote import RemoteGateway, add_remote_options, print_json
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.names import present_name
from autellix_backend.observe.durations import seconds
from autellix_lab.cli.arguments import InputError
from autellix_lab.cli.console import make_console, number_table
from autellix_lab.cli.sim_options import SCHEDULER_NAMES, with_policy
from autellix_lab.sim.calibrate import TOKEN_BUDGET
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.sim.window import busy_period, program_trace, token_times

LONGER = 1.01
"""From this ratio on a program counts as having taken longer."""
MOST_ERROR = 0.15
"""A simulation that is further off on the measured run says nothing of other policies."""
BLOCK_TOKENS = 16
"""vLLM's own size of a block on a GPU; a server's metrics do not state it."""
DEFAULT = SchedulerConfig().policy
MAX_PROGRAMS = 1000
"""The most programs of a history that a gateway lists at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the program, the policy and the gateway."""
    parser.add_argument(
        "program", metavar="PROGRAM", help="id of an ended program, as `autellix ps --all` shows it"
    )
    parser.add_argument(
        "--policy",
        type=partial(present_name, names=SCHEDULER_NAMES),
        choices=SCHEDULER_NAMES,
        help=f"the other policy (default: fcfs, vLLM's own order; {DEFAULT} where fcfs is in force)",
    )
    add_remote_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the estimate; 0 on success.

    Raises:
        RemoteError: if the gateway does not answer, or has no such program.
        InputError: if its history lacks what a replay needs.
    """
    gateway = RemoteGateway.from_args(args)
    wanted = gateway.get(f"/history/{quote(args.program, safe='/')}")["program_id"]
    listed = gateway.get(f"/history?limit={MAX_PROGRAMS}")
    if wanted not in {each["program_id"] for each in listed["programs"]}:
        raise InputError(
            f"{wanted} is not among the last {MAX_PROGRAMS:,} programs that ended; expected one of them"
        )
    period = busy_period(listed["programs"], wanted)
    details = [gateway.get(f"/history/{quote(each['program_id'], safe='/')}") for each in period]
    settings = settings_of(gateway.get("/engines")["engines"], gateway.get("/config")["scheduler"], details)
    other = DEFAULT if settings.scheduler.policy == "fcfs" else "fcfs"
    answer = estimate(details, settings, args.policy or other, wanted)
    if args.json:
        print_json(answer)
        return 0
    _show(answer, is_cut=listed["has_more"] and period[0] == min(listed["programs"], key=_began_at_s))
    return 0


def settings_of(
    engines: Sequence[Mapping[str, Any]], scheduler: Mapping[str, Any], programs: Sequence[Mapping[str, Any]]
) -> SimSettings:
    """Return the engines as they report themselves, with times fitted to the calls, and their scheduler.

    Raises:
        InputError: if the number of calls that run at once is known of no engine.
    """
    known = [engine for engine in engines if engine["slots"] or engine["max_in_flight"]]
    if not known:
        raise InputError(
            "no engine reports its slots; expected one with the Autellix scheduler and a call of it, or a "
            "bound on the calls in flight, set in engine.max_in_flight or learned once calls wait"
        )
    first = known[0]
    slots, blocks, block_tokens = first["slots"], first["kv_total_blocks"], first["kv_block_tokens"]
    if not slots:
        # A server without our scheduler: what the gateway has learned of it.
        slots, block_tokens = first["max_in_flight"], BLOCK_TOKENS
        blocks = first["kv_tokens"] // block_tokens if first["kv_tokens"] else None
    prompt_s, output_s = token_times(programs)
    model = EngineModel(
        name="history",
        max_num_seqs=slots,
        token_budget=max(TOKEN_BUDGET, slots),
        step_s=output_s,
        decode_s=0.0,
        prefill_s=prompt_s,
        **({"block_tokens": block_tokens} if block_tokens else {}),
        kv_blocks=blocks or None,
    )
    names = {field.name for field in dataclasses.fields(SchedulerConfig)}
    stated: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in scheduler.items()
        if name in names and value is not None
    }
    if "beta" in scheduler and scheduler["beta"] is None:
        # JSON has no infinity.
        stated["beta"] = math.inf
    return SimSettings(model=model, scheduler=SchedulerConfig(**stated), engines=len(known))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What programs took, and what they are estimated to take; all by program, in the order of arrival."""

    measured_s: dict[str, float]
    simulated_s: dict[str, float]
    """By the simulator under the policy that was in force."""
    estimated_s: dict[str, dict[str, float]]
    """By policy."""
    simulated_over_measured: float
    """The simulator's error on the measured run, as a ratio of total durations."""


def estimates(
    programs: Sequence[Mapping[str, Any]], settings: SimSettings, policies: Sequence[str]
) -> Estimates:
    """Return what each program took and what it is estimated to take under other policies.

    An estimate is the measured duration plus the simulated difference of the policies, at the pace of the
    measured period, so that what the simulator gets wrong under both leaves it alone.

    Raises:
        InputError: if the history lacks the tokens of all calls.
    """
    traces = [trace for trace in map(program_trace, programs) if trace is not None]
    if not traces:
        raise InputError("the history lacks the tokens of these programs' calls")
    first_s = min(trace.arrival_s or 0.0 for trace in traces)
    arrivals = sorted(((trace.arrival_s or 0.0) - first_s, trace.program_id, trace) for trace in traces)

    def simulated(each: SimSettings) -> dict[str, float]:
        records = simulate([(at_s, trace) for at_s, _, trace in arrivals], each).programs
        return {record.program_id: record.latency_s for record in records}

    own = simulated(settings)
    durations = {program["program_id"]: program["duration_s"] for program in programs}
    measured = {program_id: durations[program_id] for _, program_id, _ in arrivals}
    pace = sum(measured.values()) / sum(own.values())

    def estimated(policy: str) -> dict[str, float]:
        other = simulated(with_policy(settings, policy))
        return {
            # No shorter than simulated, unless it was.
            each: max(measured_s + pace * (other[each] - own[each]), min(measured_s, pace * other[each]))
            for each, measured_s in measured.items()
        }

    return Estimates(
        measured_s=measured,
        simulated_s=own,
        estimated_s={policy: estimated(policy) for policy in policies},
        simulated_over_measured=1 / pace,
    )


def estimate(
    programs: Sequence[Mapping[str, Any]], settings: SimSettings, policy: str, wanted: str
) -> dict[str, Any]:
    """Return the estimates of a period, in which one program is asked for.

    Raises:
        InputError: if the history lacks the tokens of its calls.
    """
    if not any(each["program_id"] == wanted and program_trace(each) for each in programs):
        raise InputError(f"the history lacks the tokens of {wanted}'s calls")
    found = estimates(programs, settings, [policy])
    rows = [
        {
            "program_id": each,
            "measured_s": measured_s,
            "simulated_s": found.simulated_s[each],
            "estimated_s": found.estimated_s[policy][each],
        }
        for each, measured_s in found.measured_s.items()
    ]
    return {
        "program_id": wanted,
        "policy": settings.scheduler.policy,
        "other_policy": policy,
        "programs": rows,
        "left_out": len(programs) - len(rows),
        "simulated_over_measured": found.simulated_over_measured,
    }


def text(answer: Mapping[str, Any]) -> str:
    """Return the estimate in words."""
    rows, ratio = answer["programs"], answer["simulated_over_measured"]
    row = next(each for each in rows if each["program_id"] == answer["program_id"])
    longer = sum(each["estimated_s"] > LONGER * each["measured_s"] for each in rows)
    error = f"Simulator error on the measured run ({answer['policy']}): {100 * (ratio - 1):+.0f} %"
    if _is_far_off(answer):
        return (
            f"It took {seconds(row['measured_s'])}. {error}, above {100 * MOST_ERROR:.0f} %: no estimate. "
            "Programs that still run, or ended before the history begins, may have shared the engines."
        )
    found = (
        f"It took {seconds(row['measured_s'])}. Under {answer['other_policy']} it would have taken about "
        f"{seconds(row['estimated_s'])}, by simulation. "
    )
    if len(rows) > 1:
        found += f"Of the {len(rows)} programs of its busy period, {longer} would have taken longer. "
    return f"{found}{error}."


def _is_far_off(answer: Mapping[str, Any]) -> bool:
    return bool(abs(answer["simulated_over_measured"] - 1) > MOST_ERROR)


def _show(answer: Mapping[str, Any], *, is_cut: bool) -> None:
    console = make_console()
    console.print(text(answer), highlight=False)
    if _is_far_off(answer):
        return
    title = f"{answer['policy']}, measured, and {answer['other_policy']}, estimated"
    table = number_table("PROGRAM", "MEASURED", "ESTIMATED", "RATIO", title=title)
    for row in sorted(answer["programs"], key=lambda row: row["estimated_s"] / row["measured_s"]):
        ratio = row["estimated_s"] / row["measured_s"]
        table.add_row(
            row["program_id"], seconds(row["measured_s"]), seconds(row["estimated_s"]), f"{ratio:.2f}"
        )
    console.print(table)
    if answer["left_out"]:
        print(f"{answer['left_out']} programs without known tokens are left out.", file=sys.stderr)
    if is_cut:
        print(f"The busy period began before the last {MAX_PROGRAMS} programs.", file=sys.stderr)


def _began_at_s(program: Mapping[str, Any]) -> float:
    began_at_s: float = program["began_at_s"]
    return began_at_s
