"""AIPerf replays agent sessions against plain vLLM and Autellix; its records give the sessions' times.

    python benchmarks/others/aiperf.py --tool ENVIRONMENT/bin/aiperf --out results

Read for AIPerf 0.13.0 (ai-dynamo/aiperf), in an environment of its own. Agents name themselves by
`X-Dynamo-Session-ID`, sub-agents also their parent. Prompts repeat the recorded answers, not those of the
engine. `sessions.json` has what AIPerf does not report: the time of each session, from its first request to
its last answer, its sub-agents' included.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import rig
from completion import Record, completion
from sessions import KV_BLOCKS, PRESENT, SESSIONS, WEKA, write_sessions

SUMMARY, RECORDS = "profile_export_aiperf.csv", "profile_export.jsonl"
VARIABLES = {
    "AIPERF_HTTP_X_DYNAMO_SESSION_ID_FROM_CORRELATION_ID": "1",
    "DO_NOT_TRACK": "1",
}


def command_of(
    tool: Path, system: rig.System, traces: Path, reports: Path, seed: int, count: int, present: int
) -> list[str]:
    """Return the command of a run: `count` sessions, each once, `present` of them at any time."""
    options = {
        "--model": rig.DEMO_MODEL_NAME,
        "--url": system.url,
        "--endpoint-type": "chat",
        "--tokenizer": system.tokenizer,
        "--custom-dataset-type": "weka_trace",
        "--input-file": traces,
        "--num-sessions": count,
        "--concurrency": present,
        "--random-seed": seed,
        "--workers-max": 1,
        "--record-processor-service-count": 1,
        "--artifact-dir": reports,
        "--ui": "none",
    }
    flags = ["--streaming", "--no-fixed-schedule", "--use-server-token-count"]
    flags += ["--no-gpu-telemetry", "--no-server-metrics"]
    inputs = [part for name in ("ignore_eos:true", "temperature:0") for part in ("--extra-inputs", name)]
    pairs = [str(part) for pair in options.items() for part in pair]
    return [str(tool), "profile", *pairs, *flags, *inputs]


def record_of(line: str) -> Record:
    """Return a call of AIPerf's records; a session is a trace, which sub-agents' calls name too."""
    about = json.loads(line)["metadata"]
    return Record(about["source_trace_id"], about["request_start_ns"] / 1e9, about["request_end_ns"] / 1e9)


def figures_of(folder: Path) -> dict[str, float]:
    """Return seconds from the reports of a run."""
    with (folder / SUMMARY).open(encoding="utf-8") as file:
        columns, *lines = (line for line in csv.reader(file) if line)
    rows = {name: values for name, *values in lines}
    sessions = json.loads((folder / "sessions.json").read_text(encoding="utf-8"))

    def seconds(metric: str, column: str) -> float:
        return float(rows[metric][columns.index(column) - 1]) / 1000

    return {
        "session, mean s": sessions["completion_mean_s"],
        "session, p95 s": sessions["completion_p95_s"],
        "request, mean s": seconds("Request Latency (ms)", "avg"),
        "first token, mean s": seconds("Time to First Token (ms)", "avg"),
        "first token, p95 s": seconds("Time to First Token (ms)", "p95"),
        "all sessions, s": float(rows["Benchmark Duration (sec)"][0]),
    }


def tool_of(args: argparse.Namespace) -> Callable[[rig.System, int, Path], None]:
    """Return a function that makes one run."""

    def run(system: rig.System, seed: int, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            traces, reports = Path(work) / "traces", Path(work) / "reports"
            write_sessions(traces, args.sessions, seed, WEKA)
            command = command_of(args.tool, system, traces, reports, seed, args.sessions, args.present)
            rig.run_tool(command, folder, VARIABLES)
            (folder / SUMMARY).write_bytes((reports / SUMMARY).read_bytes())
            lines = (reports / RECORDS).read_text(encoding="utf-8").splitlines()
            rig.write_json(folder / "sessions.json", completion(map(record_of, lines)))

    return run


if __name__ == "__main__":
    parser = rig.arguments(__doc__, KV_BLOCKS)
    parser.add_argument("--tool", type=Path, required=True, help="AIPerf's executable")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--present", type=int, default=PRESENT, help="sessions at any time")
    arguments = parser.parse_args()
    rig.compare(arguments, tool_of(arguments))
    print("\n".join(rig.table(arguments.out, arguments.seeds, figures_of)))
