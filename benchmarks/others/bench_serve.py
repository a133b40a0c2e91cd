"""`vllm bench serve` sends single calls of random lengths to plain vLLM and Autellix: what the gateway costs.

    python benchmarks/others/bench_serve.py --out results

Its calls have no programs, so nothing can be gained here. The tool is installed with vLLM.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import rig

# The command line itself asks for a distribution named vllm, which vLLM's CPU builds are not.
LAUNCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def command_of(args: argparse.Namespace, system: rig.System, seed: int, folder: Path) -> list[str]:
    """Return the tool's command for a run."""
    options = {
        "backend": "openai-chat",
        "base-url": system.url,
        "endpoint": "/v1/chat/completions",
        "model": rig.DEMO_MODEL_NAME,
        "tokenizer": system.tokenizer.name,
        "dataset-name": "random",
        "random-input-len": 400,
        "random-output-len": 64,
        "random-range-ratio": 0.5,
        "num-prompts": args.calls,
        "max-concurrency": args.present,
        "temperature": 0,
        "seed": seed,
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "result-dir": folder.resolve(),
        "result-filename": "report.json",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-c", LAUNCH, *words, "--ignore-eos", "--save-result", "--disable-tqdm"]


def main() -> None:
    """Run the tool against both systems."""
    parser = rig.arguments(__doc__, kv_blocks=512)
    parser.add_argument("--calls", type=int, default=900)
    parser.add_argument("--present", type=int, default=8, help="calls at any time")
    args = parser.parse_args()

    def tool(system: rig.System, seed: int, folder: Path) -> None:
        command = command_of(args, system, seed, folder)
        rig.run_tool(command, folder, {"HF_HUB_OFFLINE": "1"}, directory=system.tokenizer.parent)

    rig.compare(args, tool)


if __name__ == "__main__":
    main()
