"""What the command line offers: each subcommand with its module, summary and example."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand of `autellix`."""

    module: str
    """Has `add_arguments(parser)` and `run(args)`, which returns the exit code."""
    summary: str
    example: str
    """A command line that works."""


COMMANDS = {
    "serve": Command(
        "autellix_backend.cli.serve",
        "serve a model behind program-aware scheduling",
        "autellix serve Qwen/Qwen3-8B --port 8000 --max-num-seqs 64",
    ),
    "vllm": Command(
        "autellix_backend.cli.vllm",
        "run `vllm serve` with program-aware scheduling inside, and no gateway",
        "autellix vllm serve Qwen/Qwen3-8B --max-num-seqs 64",
    ),
    "config": Command(
        "autellix_backend.cli.config",
        "show the settings in force, or check for what `serve` would refuse",
        "autellix config check autellix.toml",
    ),
    "keys": Command(
        "autellix_backend.cli.keys", "make, list and revoke API keys of tenants", "autellix keys new research"
    ),
    "ps": Command(
        "autellix_backend.cli.ps", "list the programs of a gateway", "autellix ps --all --limit 20"
    ),
    "status": Command(
        "autellix_backend.cli.status",
        "summarise in a line what the programs of a gateway do, and name the one that waits longest",
        "autellix status",
    ),
    "why": Command(
        "autellix_backend.cli.why",
        "explain why a program waits, or where the time of one that ended went",
        "autellix why",
    ),
    "top": Command("autellix_backend.cli.top", "watch engines and programs", "autellix top --period 2"),
    "engines": Command(
        "autellix_backend.cli.engines",
        "list, add, drain, undrain and remove the engines of a gateway",
        "autellix engines add http://10.0.0.7:8001",
    ),
    "completion": Command(
        "autellix_backend.cli.completion",
        "print the completion of commands and options for a shell",
        'eval "$(autellix completion bash)"',
    ),
}
"""The product's own subcommands by name."""
