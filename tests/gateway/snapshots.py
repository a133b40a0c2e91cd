"""Snapshots, open calls and programs for tests, with defaults for what a test does not care about."""

from __future__ import annotations

from typing import Any

from tests.gateway import open_calls

from autellix_backend.console.explain.overview import Overview
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.engines.view import EngineView
from autellix_backend.reports.snapshot import CallSnapshot, EngineSnapshot
from autellix_backend.stores.base import Inherited, ProgramView

ENGINE = "replica-0"
NOW = 130.0


def standing(program_id: str, *, place: int, level: int, **fields: Any) -> CallSnapshot:
    """Return a waiting call of a program, with the id KEY-place."""
    defaults: dict[str, Any] = {
        "call_id": f"key-{place}",
        "thread_id": "0",
        "is_running": False,
        "since_s": 4.2,
        "wait_s": 4.2,
        "service_s": 0.0,
        "inherited_service_s": 1.4,
        "program_service_s": 1.4,
        "program_wait_s": 2.0,
        "ratio": 4.4,
        "promotion_s": 5.0,
        "quantum_s": 1.0,
        "kv_blocks": 0,
        "preemptions": 0,
        "promotions": 0,
    }
    return CallSnapshot(program_id=program_id, place=place, level=level, **{**defaults, **fields})


def snapshot(*calls: CallSnapshot, **fields: Any) -> EngineSnapshot:
    """Return a snapshot of an engine with two slots."""
    running = sum(call.is_running for call in calls)
    defaults: dict[str, Any] = {
        "step": 10,
        "mean_step_s": 0.02,
        "running": running,
        "waiting": len(calls) - running,
        "slots": 2,
        "kv_used_blocks": 6,
        "kv_total_blocks": 12,
        "kv_block_tokens": 16,
        "is_block_short": False,
        "level_calls": (0, 0, 0),
        "calls": calls,
    }
    return EngineSnapshot(**{**defaults, **fields})


def open_call(key: str = "key-1", program_id: str = "p", **fields: Any) -> GatewayCall:
    """Return an open call of a program, which began 5 s before the moment of `overview`."""
    headers = {"x-autellix-program-id": program_id, "x-autellix-call-id": f"call-{key}"}
    inherited = Inherited(service_s=1.4, program_service_s=0.0, wait_s=0.0)
    defaults: dict[str, Any] = {"began_s": NOW - 5.0, "engine": ENGINE, "level": 2, "inherited": inherited}
    return open_calls.open_call(headers, key=key, **{**defaults, **fields})


def engine(last: EngineSnapshot | None = None, **fields: Any) -> EngineView:
    """Return an engine whose last snapshot is 0.3 s old."""
    if last is None:
        return EngineView(**fields)
    return EngineView(**{"snapshot": last, "ranks": (last,), "age_s": 0.3, **fields})


def overview(*calls: GatewayCall, last: EngineSnapshot | None = None, **fields: Any) -> Overview:
    """Return the open calls of one engine and its last snapshot."""
    return Overview(calls, {ENGINE: engine(last, **fields)}, NOW)


def program(program_id: str = "p", **fields: Any) -> ProgramView:
    """Return a program with one open call."""
    defaults: dict[str, Any] = {
        "name": "react",
        "session_ids": ("s",),
        "service_s": 1.4,
        "wait_s": 2.0,
        "active_calls": 1,
        "finished_calls": 3,
        "first_arrival_s": 100.0,
        "last_event_s": 110.0,
    }
    return ProgramView(program_id=program_id, **{**defaults, **fields})
