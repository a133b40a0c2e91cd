"""inference-perf replays agent sessions against plain vLLM and Autellix; it reports the sessions' completion.

    python benchmarks/others/inference_perf.py --tool ENVIRONMENT/bin/inference-perf --out results

Read for inference-perf 0.7.0 (kubernetes-sigs/inference-perf), which needs Python 3.12 and an environment of
its own. Sessions name themselves by `X-Session-ID`. Later prompts of OpenTelemetry traces hold the recorded
answers, so they are equal on both systems; those of weka traces hold the answers that the tool gets.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import rig
from sessions import FORMATS, KV_BLOCKS, OTEL, PRESENT, SESSIONS, write_sessions

REPORTS = ("summary_lifecycle_metrics.json", "summary_session_lifecycle_metrics.json")
"""Those that are kept; `config.yaml` names folders of the machine."""


def configuration(
    system: rig.System, traces: Path, kind: str, reports: Path, seed: int, present: int
) -> dict[str, object]:
    """Return the tool's configuration of a run."""
    return {
        "api": {"type": "chat", "streaming": True, "session_id_header_key": "X-Session-ID"},
        "server": {
            "type": "vllm",
            "model_name": rig.DEMO_MODEL_NAME,
            "base_url": system.url,
            "ignore_eos": True,
        },
        "tokenizer": {"pretrained_model_name_or_path": str(system.tokenizer)},
        "data": {
            "type": f"{kind}_trace_replay",
            f"{kind}_trace_replay": {
                "trace_directory": str(traces),
                "use_static_model": True,
                "static_model_name": rig.DEMO_MODEL_NAME,
                **({"disable_output_substitution": True} if kind == OTEL else {}),
            },
        },
        "load": {
            "type": "trace_session_replay",
            "stages": [{"concurrent_sessions": present}],
            "num_workers": 1,
            # Calls that wait for earlier ones of their session count too.
            "worker_max_concurrency": 10_000,
            "base_seed": seed,
        },
        "report": {
            "request_lifecycle": {"per_stage": False, "percentiles": [50, 90, 95, 99]},
            "session_lifecycle": {"per_stage": False},
        },
        "storage": {"local_storage": {"path": str(reports)}},
    }


def figures_of(folder: Path) -> dict[str, float]:
    """Return seconds from the reports of a run."""
    calls, whole = (json.loads((folder / name).read_text(encoding="utf-8")) for name in REPORTS)
    session_s, latency = whole["session_duration_sec"], calls["successes"]["latency"]
    return {
        "session, mean s": session_s["mean"],
        "session, p95 s": session_s["p95"],
        "request, mean s": latency["request_latency"]["mean"],
        "first token, mean s": latency["time_to_first_token"]["mean"],
        "first token, p95 s": latency["time_to_first_token"]["p95"],
        "all sessions, s": calls["benchmark_time_seconds"],
    }


def tool_of(args: argparse.Namespace) -> Callable[[rig.System, int, Path], None]:
    """Return a function that makes one run."""

    def run(system: rig.System, seed: int, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            traces, reports, config = (Path(work) / name for name in ("traces", "reports", "config.yml"))
            write_sessions(traces, args.sessions, seed, args.traces)
            about = configuration(system, traces, args.traces, reports, seed, args.present)
            # JSON is YAML.
            config.write_text(json.dumps(about), encoding="utf-8")
            rig.run_tool([str(args.tool), "--config_file", str(config)], folder, {"HF_HUB_OFFLINE": "1"})
            for name in REPORTS:
                (folder / name).write_bytes((reports / name).read_bytes())

    return run


if __name__ == "__main__":
    parser = rig.arguments(__doc__, KV_BLOCKS)
    parser.add_argument("--tool", type=Path, required=True, help="inference-perf's executable")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--present", type=int, default=PRESENT, help="sessions at any time")
    parser.add_argument("--traces", choices=FORMATS, default=OTEL)
    arguments = parser.parse_args()
    rig.compare(arguments, tool_of(arguments))
    print("\n".join(rig.table(arguments.out, arguments.seeds, figures_of)))
