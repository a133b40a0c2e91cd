"""`autellix vllm serve MODEL ...`: print and run vLLM's own command, with our scheduler and middleware."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence

from autellix_backend.engines.vllm_command import SCHEDULER_CLASS, VLLM_SERVER
from autellix_backend.errors import CommandError
from autellix_backend.install import ENGINE

MIDDLEWARE = "autellix_backend.vllm_plugin.middleware.ProgramMiddleware"
OURS = ("--scheduler-cls", SCHEDULER_CLASS, "--middleware", MIDDLEWARE)


class VllmCommandError(CommandError):
    """The command line is not one of `vllm serve`, or vLLM is not installed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare vLLM's own command line, which is passed on as it is."""
    parser.usage = "autellix vllm serve MODEL [OPTION OF VLLM ...]"
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="serve MODEL ...", help="the command line of `vllm serve`"
    )


def run(args: argparse.Namespace) -> int:
    """Print the command, and become it."""
    if importlib.util.find_spec("vllm") is None:
        raise VllmCommandError(f"vLLM is not installed; expected {ENGINE}")
    command = vllm_command(args.words, has_script=_has_script())
    print("$", shlex.join(command), file=sys.stderr, flush=True)
    os.execvp(command[0], command)


def vllm_command(words: Sequence[str], *, has_script: bool) -> list[str]:
    """Return the command for the words behind `autellix vllm`.

    Args:
        words: `serve`, the model, and options of vLLM.
        has_script: Whether `vllm` works; without it its server is run as a module.

    Raises:
        VllmCommandError: if the words are others, or state the scheduler themselves.
    """
    if len(words) < 2 or words[0] != "serve" or words[1].startswith("-"):
        raise VllmCommandError(f"`autellix vllm {shlex.join(words)}`: expected `autellix vllm serve MODEL`")
    if any(word.partition("=")[0].replace("_", "-") == OURS[0] for word in words):
        raise VllmCommandError(f"{OURS[0]} is set by autellix; expected other options of vLLM")
    _, model, *options = words
    start = ["vllm", "serve", model] if has_script else [*VLLM_SERVER, "--model", model]
    return [*start, *options, *OURS]


def _has_script() -> bool:
    # The script of the CPU build expects a distribution of another name, and fails.
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
