"""The laboratory's subcommands of `autellix`, one module each; the product finds them by an entry point."""

from __future__ import annotations

from autellix_backend.cli.commands import Command

COMMANDS = {
    "demo": Command("autellix_lab.cli.demo", "compare scheduling policies on a real engine", "autellix demo"),
    "bench": Command(
        "autellix_lab.cli.bench",
        "replay programs against a live endpoint, and compare results",
        "autellix bench replay traffic.jsonl --url http://127.0.0.1:8000 --out fcfs.json",
    ),
    "trace": Command(
        "autellix_lab.cli.trace",
        "export recorded programs, or a gateway's history, for other tools",
        "autellix trace export --perfetto traffic.jsonl -o traffic.perfetto.json",
    ),
    "sim": Command(
        "autellix_lab.cli.sim",
        "simulate engines and policies in virtual time",
        "autellix sim run mixed --policy boost --rho 1.2",
    ),
    "workload": Command(
        "autellix_lab.cli.workload",
        "convert, generate and describe program traces",
        "autellix workload describe traffic.jsonl",
    ),
    "whatif": Command(
        "autellix_lab.cli.whatif",
        "estimate how long an ended program would have taken under another policy",
        "autellix whatif conversation-7-chat --policy fcfs",
    ),
    "demo-model": Command(
        "autellix_lab.cli.demo_model",
        "write the tiny demo model into a folder",
        "autellix demo-model demo-model-folder",
    ),
}
"""The laboratory's subcommands by name."""
