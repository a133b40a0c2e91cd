"""`autellix sim`: simulate engines and policies in virtual time; one module for each action."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import Any

from rich.table import Table

from autellix_lab.cli.arguments import InputError
from autellix_lab.cli.console import make_console, number_table
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import PRESETS, ModelError
from autellix_lab.workload.tokens import TokenizerError
from autellix_lab.workload.trace import TraceError

ACTIONS = {
    "run": ("autellix_lab.cli.sim_run", "simulate one workload under one policy"),
    "sweep": ("autellix_lab.cli.sim_sweep", "compare policies over offered loads and seeds"),
    "paper": ("autellix_lab.cli.sim_paper", "simulate the paper's experiments"),
    "calibrate": ("autellix_lab.cli.sim_calibrate", "fit an engine model to a live engine"),
}
"""Module and one-line help by name of the action."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, (module_name, summary) in ACTIONS.items():
        module = importlib.import_module(module_name)
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        module.add_arguments(action)
        action.set_defaults(action=module.run)
    presets = actions.add_parser("presets", help="list the engine models and where their numbers come from")
    presets.add_argument("--json", action="store_true", help="print JSON instead of a table")
    presets.set_defaults(action=_presets)


def run(args: argparse.Namespace) -> int:
    """Run the action; 0 on success, 1 if a live engine failed, 2 for input that cannot be used."""
    try:
        code: int = args.action(args)
    except (TraceError, TokenizerError, ModelError, InputError, OSError) as error:
        print(f"autellix sim: {error}", file=sys.stderr)
        return 2
    return code


def _presets(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps({name: engine.to_mapping() for name, engine in PRESETS.items()}))
        return 0
    console = make_console()
    console.print(_preset_table(list(PRESETS.values())))
    for engine in PRESETS.values():
        console.print(f"{engine.name}: {engine.source}", highlight=False, soft_wrap=True)
    return 0


def _preset_table(engines: list[EngineModel]) -> Table:
    columns: dict[str, Any] = {
        "engine": lambda e: e.name,
        "batch": lambda e: str(e.max_num_seqs),
        "token budget": lambda e: str(e.token_budget) if e.token_budget < 1 << 30 else "no bound",
        "step (ms)": lambda e: f"{e.step_s * 1e3:.3g}",
        "decode (ms/call)": lambda e: f"{e.decode_s * 1e3:.3g}",
        "prefill (ms/token)": lambda e: f"{e.prefill_s * 1e3:.3g}",
        "call (ms)": lambda e: f"{e.call_s * 1e3:.3g}",
        "KV blocks": lambda e: "no bound" if e.kv_blocks is None else str(e.kv_blocks),
        "swap (us/block)": lambda e: f"{e.swap_block_s * 1e6:.3g}",
        "transfer (us)": lambda e: f"{e.swap_transfer_s * 1e6:.3g}",
    }
    table = number_table(*columns)
    for engine in engines:
        table.add_row(*(show(engine) for show in columns.values()))
    return table
