"""`autellix vllm serve MODEL ...`: print and run vLLM's own command, with our scheduler and middleware."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autellix_backend.cli.notes import note
from autellix_backend.engines.replica import generated_model
from autellix_backend.engines.vllm_command import (
    SCHEDULER_CLASS,
    VLLM_SERVER,
    NoGpuError,
    check_engine_installed,
    check_model,
    device_arguments,
    environment_defaults,
    is_cpu_engine,
)
from autellix_backend.errors import CommandError

MIDDLEWARE = "autellix_backend.vllm_plugin.middleware.ProgramMiddleware"
OURS = ("--scheduler-cls", SCHEDULER_CLASS, "--middleware", MIDDLEWARE)
SERVED_NAME = "--served-model-name"
RUST = "VLLM_USE_RUST_FRONTEND"
"""vLLM's switch for its server in Rust, which leaves `--middleware` out without a word."""


class VllmCommandError(CommandError):
    """The command line is not one of `vllm serve`, or vLLM's server would run without our middleware."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare vLLM's own command line, which is passed on as it is."""
    parser.usage = "autellix vllm serve MODEL [OPTION OF VLLM ...]"
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="serve MODEL ...", help="the command line of `vllm serve`"
    )


def run(args: argparse.Namespace) -> int:
    """Print the command, and become it."""
    model, options = read_words(args.words)
    if os.environ.get(RUST, "0") not in ("", "0"):
        raise VllmCommandError(f"{RUST} is set: vLLM's Rust server runs no middleware; expected it unset")
    try:
        check_engine_installed()
    except NoGpuError as error:
        # vLLM also runs on devices that we do not know.
        note(str(error))
    model, options = resolve_model(model, options)
    environment = cpu_environment(model, options, os.environ) if is_cpu_engine() else {}
    command = vllm_command(model, options, script=_script(), is_cpu=is_cpu_engine())
    variables = [f"{name}={value}" for name, value in environment.items()]
    print("$", *variables, shlex.join(command), file=sys.stderr, flush=True)
    os.execve(command[0], command, {**os.environ, **environment})


def read_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the model and the options of vLLM in the words behind `autellix vllm`.

    Raises:
        VllmCommandError: if the words are others, or state the scheduler themselves.
    """
    if len(words) < 2 or words[0] != "serve" or words[1].startswith("-"):
        raise VllmCommandError(f"`autellix vllm {shlex.join(words)}`: expected `autellix vllm serve MODEL`")
    if OURS[0] in _names(words):
        raise VllmCommandError(f"{OURS[0]} is set by autellix; expected other options of vLLM")
    return words[1], list(words[2:])


def resolve_model(model: str, options: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folder of a model that an installed package makes, with its name among the options.

    Raises:
        EngineError: if it cannot be made, or the model is a path where there is none.
    """
    generated = generated_model(model)
    if generated is None:
        check_model(model)
        return model, list(options)
    folder, name = generated.load()(None)
    named = [] if SERVED_NAME in _names(options) else [SERVED_NAME, name]
    return str(folder), [*options, *named]


def cpu_environment(model: str, options: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an engine on a CPU that the user has not set."""
    defaults = environment_defaults(model, options, is_cpu=True, cores=len(os.sched_getaffinity(0)))
    return {name: value for name, value in defaults.items() if name not in environ}


def vllm_command(model: str, options: Sequence[str], *, script: str | None, is_cpu: bool) -> list[str]:
    """Return the command that serves a model.

    Args:
        model: A folder or the id of a model.
        options: Options of vLLM.
        script: The path of `vllm`; without one its server is run as a module.
        is_cpu: Whether the engine is built for the CPU.
    """
    start = [*VLLM_SERVER, "--model", model] if script is None else [script, "serve", model]
    return [*start, *options, *device_arguments(model, options, os.environ, is_cpu=is_cpu), *OURS]


def _names(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0].replace("_", "-") for word in words}


def _script() -> str | None:
    # The script of the CPU build expects a distribution of another name, and fails.
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None
    script = Path(sys.executable).with_name("vllm")
    return str(script) if script.exists() else None
