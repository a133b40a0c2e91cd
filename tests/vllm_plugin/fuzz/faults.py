"""Deliberate faults: one of our methods raises once, wherever vLLM or we call it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any


def plant_fault(plugin: Any, generator: random.Random, outcome: Any) -> Callable[[], None]:
    """Have a random method of our parts raise at one of its first calls, and note it in the outcome.

    What is returned withdraws a fault that has not been raised yet.
    """
    # It is logged, with its traceback.
    logging.getLogger("vllm.autellix").setLevel(logging.CRITICAL + 1)
    tracker, engine = plugin.tracker, plugin.engine
    machine = tracker.machine
    parts = {
        "plugin": plugin,
        "decisions": plugin.decisions,
        "prices": plugin.prices,
        "host tier": plugin.host_tier,
        "reporter": plugin._reporter,
        "engine": engine,
        "order": engine.order,
        "blocks": engine.blocks,
        "tracker": tracker,
        "contexts": tracker._contexts,
        "machine": machine,
        "shares": machine.shares,
        "admission": machine.admission,
        "table": machine.table,
        "quanta": machine.quanta,
        "starvation": machine.starvation,
    }
    places = [(name, part, method) for name, part in parts.items() for method in _methods(part)]
    name, part, method = generator.choice(places)
    original, left = getattr(part, method), [generator.choice([1, 2, 5, 20, 60])]

    def failing(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            outcome.fault = f"{name}.{method}"
            raise RuntimeError("deliberate")
        return original(*args, **kwargs)

    def withdraw() -> None:
        left[0] = 0

    setattr(part, method, failing)
    return withdraw


def _methods(part: Any) -> list[str]:
    if not hasattr(part, "__dict__"):
        return []
    kind = type(part)
    return [
        name
        for name in dir(kind)
        # Nothing but tests calls `check`.
        if not name.startswith("__") and name != "check" and hasattr(getattr(kind, name), "__code__")
    ]
