"""GuideLLM replays agent sessions against plain vLLM and Autellix; it sends no session's id.

    python benchmarks/others/run_guidellm.py --tool ENVIRONMENT/bin/guidellm --out results

Read for GuideLLM 0.8.1 (vllm-project/guidellm), in an environment of its own. The sessions are weka traces of
coding shape. The tool puts each recorded prompt whole behind the history, so a conversation grows by the sum
of its prompts, up to `--max-tokens`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import rig
from completion import Record, completion
from sessions import with_times

from autellix_lab.report.weka import weka_session
from autellix_lab.workload.fit import GapRule, fit_program
from autellix_lab.workload.generate import SHAPES, generate_shaped
from autellix_lab.workload.heavy_tail import HeavyTail
from autellix_lab.workload.trace import ProgramTrace

SHAPE = replace(
    SHAPES["coding"],
    calls=HeavyTail(9, 16, 0.4),
    prefill_tokens=HeavyTail(6400, 20_000, 0.8),
    decode_tokens=HeavyTail(4000, 8000, 0.5),
)
"""Few calls that add more, and longer answers, than recorded ones."""
LENGTHS, GAPS = 0.01, 0.003
"""The tool reads no recorded durations of weka traces by itself, so a pause has the call before in it."""
TOKENIZER = "tokenizer"
VARIABLES = {"HF_HUB_OFFLINE": "1", "COLUMNS": "200", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
"""Its ten processes take longer to start than a run lasts, and share two cores with the engines."""


def programs(
    count: int, seed: int, spacing_s: float, max_tokens: int, gaps: float = GAPS
) -> list[ProgramTrace]:
    """Return sessions that begin every `spacing_s` seconds, with the times of their calls."""
    rule = GapRule(math.inf, gaps)
    fitted = (
        fit_program(program, length_scale=LENGTHS, max_context_tokens=max_tokens, gap_rule=rule)
        for program in generate_shaped("coding", SHAPE, count, seed)
    )
    return [begun_at(number * spacing_s, with_times(program)) for number, program in enumerate(fitted)]


def begun_at(arrival_s: float, program: ProgramTrace) -> ProgramTrace:
    """Return a program whose calls start so much later: the tool reads all times on one clock."""
    calls = [replace(call, start_s=arrival_s + (call.start_s or 0.0)) for call in program.calls]
    return replace(program, calls=tuple(calls))


def records_of(report: Mapping[str, Any]) -> list[Record]:
    """Return the successful calls in the tool's JSON report."""
    return [
        Record(row["info"]["conversation_id"], row["request_start_time"], row["request_end_time"])
        for benchmark in report["benchmarks"]
        for row in benchmark["requests"]["successful"]
    ]


def scenario(args: argparse.Namespace, system: rig.System, seed: int) -> dict[str, Any]:
    """Return the tool's configuration of a run, whose paths are those of its folder."""
    return {
        "backend": {
            "kind": "openai_http",
            "target": system.url,
            "model": rig.DEMO_MODEL_NAME,
        },
        "profile": {"kind": "replay"},
        "tokenizer": {"kind": "huggingface_auto", "model": TOKENIZER},
        "data": [
            {
                "kind": "weka",
                "source": {"kind": "json_file", "path": "sessions.jsonl"},
                "max_context_len": args.max_tokens,
            }
        ],
        "seed": {"kind": "static", "value": seed},
        "outputs": [
            {"kind": "json", "path": "report.json"},
            {"kind": "csv", "path": "report.csv"},
        ],
    }


def main() -> None:
    """Run the tool against both systems."""
    parser = rig.arguments(__doc__, kv_blocks=360)
    parser.add_argument("--tool", type=Path, required=True, help="GuideLLM's executable")
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--spacing", type=float, default=0.4, help="seconds between arrivals")
    parser.add_argument("--gaps", type=float, default=GAPS, help="factor on recorded sessions' gaps")
    parser.add_argument("--max-tokens", type=int, default=5000, help="of a conversation")
    args = parser.parse_args()

    def tool(system: rig.System, seed: int, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            found = programs(args.sessions, seed, args.spacing, args.max_tokens, args.gaps)
            lines = "".join(json.dumps(weka_session(program)) + "\n" for program in found)
            (work / "sessions.jsonl").write_text(lines, encoding="utf-8")
            (work / "scenario.json").write_text(json.dumps({"spec": scenario(args, system, seed)}))
            (work / TOKENIZER).symlink_to(system.tokenizer)
            command = [str(args.tool.absolute()), "run", "--config", "scenario.json"]
            rig.run_tool(
                [*command, "--disable-console-interactive"],
                folder,
                VARIABLES | {"HF_HOME": str(work / "cache")},
                directory=work,
            )
            (folder / "report.csv").write_bytes((work / "report.csv").read_bytes())
            records = records_of(json.loads((work / "report.json").read_text(encoding="utf-8")))
        rig.write_json(folder / "conversations.json", completion(records))

    rig.compare(args, tool)


if __name__ == "__main__":
    main()
