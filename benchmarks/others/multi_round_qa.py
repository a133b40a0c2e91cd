r"""production-stack's multi-round QA asks plain vLLM and Autellix questions behind each user's history.

    python benchmarks/others/multi_round_qa.py --tool CHECKOUT/benchmarks/multi-round-qa \
        --python ENVIRONMENT/bin/python --out results

Read for vllm-project/production-stack at a6c01db; its environment needs openai and pandas. Users arrive
and ask at fixed times, and the tool stops asking after `--time`: how many calls it makes depends on the
answers' times, but those that it made it waits for. It has no seed; runs differ by the users' numbers.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import rig
from completion import Record, completion

USERS_OF_A_SEED = 1000


def records_of(rows: Iterable[Mapping[str, str]]) -> list[Record]:
    """Return the calls in the tool's `summary.csv`."""
    return [Record(row["user_id"], float(row["launch_time"]), float(row["finish_time"])) for row in rows]


def command_of(args: argparse.Namespace, system: rig.System, seed: int, folder: Path) -> list[str]:
    """Return the tool's command for a run."""
    options = {
        "num-users": args.users,
        "num-rounds": args.rounds,
        "qps": args.qps,
        "shared-system-prompt": args.shared_words,
        "user-history-prompt": args.user_words,
        "answer-len": args.answer_tokens,
        "time": args.time,
        "init-user-id": USERS_OF_A_SEED * seed,
        "model": rig.DEMO_MODEL_NAME,
        "base-url": f"{system.url}/v1",
        "output": folder.resolve() / "summary.csv",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [str(args.python), str(args.tool.resolve() / "multi-round-qa.py"), *words]


def main() -> None:
    """Run the tool against both systems."""
    parser = rig.arguments(__doc__, kv_blocks=180)
    parser.add_argument("--tool", type=Path, required=True, help="the folder of multi-round-qa.py")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of its environment")
    parser.add_argument("--users", type=int, default=12, help="present at any time")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--qps", type=float, default=5.0)
    parser.add_argument("--shared-words", type=int, default=100, help="two tokens each")
    parser.add_argument("--user-words", type=int, default=300)
    parser.add_argument("--answer-tokens", type=int, default=60)
    parser.add_argument("--time", type=int, default=50, help="seconds")
    args = parser.parse_args()

    def tool(system: rig.System, seed: int, folder: Path) -> None:
        rig.run_tool(command_of(args, system, seed, folder), folder)
        with (folder / "summary.csv").open(encoding="utf-8", newline="") as rows:
            records = records_of(csv.DictReader(rows))
        rig.write_json(folder / "conversations.json", completion(records, calls=args.rounds))

    rig.compare(args, tool)


if __name__ == "__main__":
    main()
