"""`autellix sim`: simulate engines and policies in virtual time; one module for each action."""

from __future__ import annotations

import argparse
import importlib
import json

from rich.table import Table

from autellix_lab.cli.arguments import run_action
from autellix_lab.cli.console import make_console, number_table
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import PRESETS

ACTIONS = {
    "run": ("autellix_lab.cli.sim_run", "simulate one workload under one policy"),
    "sweep": ("autellix_lab.cli.sim_sweep", "compare policies over offered loads and seeds"),
    "paper": ("autellix_lab.cli.sim_paper", "simulate the paper's experiments"),
    "replay": ("autellix_lab.cli.sim_replay", "replay an engine's record, and compare every decision"),
    "calibrate": ("autellix_lab.cli.sim_calibrate", "fit an engine model to a live engine"),
}
"""Module and one-line help by name of the action."""


SHOWN = (
    "max_num_seqs",
    "token_budget",
    "step_s",
    "decode_s",
    "prefill_s",
    "call_s",
    "kv_blocks",
    "swap_block_s",
)
"""Fields of an engine model that the table of presets shows."""


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


run = run_action


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
    table = number_table("engine", *SHOWN)
    for engine in engines:
        table.add_row(engine.name, *(_shown(getattr(engine, name)) for name in SHOWN))
    return table


def _shown(value: float | None) -> str:
    if value is None:
        return "no bound"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
