"""Programs as weka traces, which inference-perf, AIPerf, GuideLLM and kv-cache-tester replay.

The format is described at `autellix_lab.workload.loaders.claude_code`, which reads it. All times are seconds
from the start of the session, those of subagents too, as in the traces that SemiAnalysis publishes. The `t`
of a subagent is its start, as inference-perf 0.7 and AIPerf 0.13 read it: both take a request with an earlier
`t` as relative to it. AIPerf refuses a trace that lacks any of the fields that are written here.

Parents are not in the format: a call that starts after another has ended seems to have waited for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from autellix_lab.workload.trace import CallTrace, ProgramTrace

BLOCK_TOKENS = 64
MODEL = "recorded"
"""For a program whose trace names no model."""


def weka_session(program: ProgramTrace) -> dict[str, Any] | None:
    """Return a program as a session; None if its trace lacks times of calls.

    The thread of the first call is the main agent, and each other thread a subagent. A prompt repeats whole
    blocks of 64 tokens, so a prefix that ends inside a block is shorter in the session.
    """
    if any(call.start_s is None or call.latency_s is None for call in program.calls):
        return None
    models = list(program.models) or [MODEL]
    blocks = _prompt_blocks(program.calls)
    threads: dict[str, list[dict[str, Any]]] = {}
    for call in program.calls:
        threads.setdefault(call.thread, []).append(_request(call, models[0], blocks[call.id]))
    main, *others = threads.items()
    entries = main[1] + [_subagent(name, requests, models) for name, requests in others]
    return {
        "id": program.program_id,
        "models": models,
        "block_size": BLOCK_TOKENS,
        "hash_id_scope": "local",
        "tool_tokens": 0,
        "system_tokens": program.system_prefix_tokens or 0,
        "requests": sorted(entries, key=itemgetter("t")),
    }


def _prompt_blocks(calls: Sequence[CallTrace]) -> list[list[int]]:
    """Return the ids of each call's whole blocks: those of the prefix that it repeats, then new ones."""
    fresh = itertools.count()
    contexts: list[list[int]] = []
    for call in calls:
        prefix = [] if call.prefix_from is None else contexts[call.prefix_from]
        context = prefix[: call.shared_prefix_tokens // BLOCK_TOKENS]
        context += itertools.islice(fresh, call.context_tokens // BLOCK_TOKENS - len(context))
        contexts.append(context)
    return [
        context[: call.prefill_tokens // BLOCK_TOKENS] for call, context in zip(calls, contexts, strict=True)
    ]


def _request(call: CallTrace, model: str, blocks: list[int]) -> dict[str, Any]:
    request = {
        "t": call.start_s,
        "type": "n",
        "model": model,
        "in": call.prefill_tokens,
        "out": call.decode_tokens,
        "hash_ids": blocks,
        "api_time": call.latency_s,
    }
    return request if call.gap_before_s is None else {**request, "think_time": call.gap_before_s}


def _subagent(name: str, requests: list[dict[str, Any]], models: list[str]) -> dict[str, Any]:
    start_s = requests[0]["t"]
    end_s = max(request["t"] + request["api_time"] for request in requests)
    return {
        "t": start_s,
        "type": "subagent",
        "agent_id": name,
        "subagent_type": name,
        "duration_ms": round(1000 * (end_s - start_s)),
        "status": "completed",
        "models": models,
        "requests": requests,
    }
