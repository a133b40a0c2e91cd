"""The settings of earlier versions, and what replaces each."""

from __future__ import annotations

_CONSTANT = "it is a constant"

DROPPED = {
    "gateway.max_body_bytes": f"{_CONSTANT} (64 MiB); a proxy can allow less",
    "gateway.max_incoming_bytes": f"{_CONSTANT} (256 MiB)",
    "gateway.max_answer_bytes": f"{_CONSTANT} (64 MiB)",
    "gateway.upstream_timeout_s": f"{_CONSTANT} (an hour); clients and proxies have shorter ones",
    "gateway.report_wait_s": f"{_CONSTANT} (2 s)",
    "gateway.subagents": "sub-agents are threads of their root program",
    "gateway.record_path": "`autellix workload convert` makes a trace of observe.call_log",
    "gateway.workers": "start several gateways behind a proxy, with store.url",
    "engine.kv_events": "balancers go by what engines report",
    "engine.kv_events_port": "balancers go by what engines report",
    "engine.session_header": "engines get the program in the headers of vLLM, llm-d and Dynamo",
    "engine.startup_timeout_s": f"{_CONSTANT} (an hour)",
    "engine.state_dir": "set AUTELLIX_CACHE_DIR",
    "engine.max_restarts": f"{_CONSTANT} (5 in ten minutes)",
    "engine.stall_timeout_s": f"{_CONSTANT} (ten minutes)",
    "balancer.threshold_tokens": _CONSTANT,
    "scheduler.service": "measured time is charged, and tokens where no time is reported",
    "limits.max_programs": "use limits.max_calls",
    "limits.max_sessions": f"{_CONSTANT} (10,000 for each tenant)",
    "limits.program_calls": "use limits.program_tokens",
    "limits.program_service_s": "use limits.program_tokens",
    "limits.day_service_s": "use limits.day_tokens",
    "limits.max_messages": "use limits.tokens_per_minute",
    "observe.history_programs": f"{_CONSTANT} (1,000)",
    "observe.history_file": "spans of programs and calls go to observe.otlp_endpoint",
    "store.timeout_ms": f"{_CONSTANT} (1 s)",
    "ray.cpus": f"{_CONSTANT} (1)",
    "ray.gpus": "the parallel sizes of the engine's arguments decide",
}
"""The replacement of each dropped setting, by its dotted name."""
