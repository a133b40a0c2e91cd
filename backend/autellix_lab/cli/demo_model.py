"""`autellix demo-model`: writes the tiny generated model, for use with any engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from autellix_lab.demo.model import build_demo_model, demo_model_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folder and the seed."""
    parser.add_argument("directory", metavar="DIR", type=Path, nargs="?", help="default: the cache folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default 0)")


def run(args: argparse.Namespace) -> int:
    """Write the model and print its folder."""
    print(build_demo_model(args.directory or demo_model_directory(), args.seed))
    return 0
