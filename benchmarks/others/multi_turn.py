r"""vLLM's multi-turn benchmark holds conversations with plain vLLM and Autellix, without a session's id.

    python benchmarks/others/multi_turn.py --tool CHECKOUT/benchmarks/multi_turn \
        --python ENVIRONMENT/bin/python --out results

Read for vLLM 0.32.0, whose source distribution has it; its environment needs vLLM and pandas. The
conversations are those of its `generate_multi_turn.json`, of which only the text is ours: 24, with 500 tokens
that all share, about 1,000 of their own, and six to nine questions and answers. The tool sends no least
length, so answers end where the model ends them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import rig
from completion import Record, completion

from autellix_lab.demo.corpus import sentences

SUMMARY = "Statistics summary"


def records_of(rows: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Return the calls in the tool's JSON of single requests."""
    return [
        Record(
            row["conversation_id"],
            row["start_time_ms"] / 1000,
            (row["start_time_ms"] + row["latency_ms"]) / 1000,
        )
        for row in rows
    ]


def summary_of(log: str) -> str:
    """Return the statistics at the end of the tool's output; what comes before names folders."""
    return log[log.rindex(SUMMARY) :].partition("\n")[2]


def command_of(
    args: argparse.Namespace, system: rig.System, seed: int, work: Path, folder: Path
) -> list[str]:
    """Return the tool's command for a run."""
    options = {
        "input-file": work / "conversations.json",
        "model": system.tokenizer.name,
        "served-model-name": rig.DEMO_MODEL_NAME,
        "url": system.url,
        "seed": seed,
        "num-clients": args.present,
        "max-active-conversations": args.present,
        "request-rate": args.rate,
        "stats-json-output": folder.resolve() / "requests.json",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    program = str(args.tool.resolve() / "benchmark_serving_multi_turn.py")
    ids = ["--send-conversation-id"] if args.ids else []
    return [str(args.python), program, *words, "--no-early-stop", *ids]


def main() -> None:
    """Run the tool against both systems."""
    parser = rig.arguments(__doc__, kv_blocks=300)
    parser.add_argument("--tool", type=Path, required=True, help="the folder of the benchmark")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of its environment")
    parser.add_argument("--present", type=int, default=12, help="conversations at any time")
    parser.add_argument("--rate", type=float, default=2.0, help="of a conversation's questions, 1/s")
    parser.add_argument("--ids", action="store_true", help="send X-Session-ID, which names the program")
    args = parser.parse_args()

    def tool(system: rig.System, seed: int, folder: Path) -> None:
        given = json.loads((args.tool / "generate_multi_turn.json").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            (work / "text.txt").write_text("\n".join(sentences(seed)), encoding="utf-8")
            written = given | {"text_files": [str(work / "text.txt")]}
            (work / "conversations.json").write_text(json.dumps(written), encoding="utf-8")
            command = command_of(args, system, seed, work, folder)
            rig.run_tool(command, folder, {"HF_HUB_OFFLINE": "1"}, directory=system.tokenizer.parent)
        log = (folder / "tool.log").read_text(encoding="utf-8")
        (folder / "summary.txt").write_text(summary_of(log), encoding="utf-8")
        records = records_of(json.loads((folder / "requests.json").read_text(encoding="utf-8")))
        rig.write_json(folder / "conversations.json", completion(records))

    rig.compare(args, tool)


if __name__ == "__main__":
    main()
