"""The laboratory's subcommands of `autellix`, one module each; the product finds them by an entry point."""

from __future__ import annotations

COMMANDS = {
    "demo": ("autellix_lab.cli.demo", "compare scheduling policies on a real engine"),
    "bench": ("autellix_lab.cli.bench", "replay programs against a live endpoint, and compare results"),
    "sim": ("autellix_lab.cli.sim", "simulate engines and policies in virtual time"),
    "workload": ("autellix_lab.cli.workload", "convert, generate and describe program traces"),
    "demo-model": ("autellix_lab.cli.demo_model", "write the tiny demo model into a folder"),
}
"""Module and one-line help by name of the subcommand."""
