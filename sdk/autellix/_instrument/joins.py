"""Completes joins where an engine goes on in the task of the last finisher."""

from __future__ import annotations

from autellix._instrument.patches import around_async, before
from autellix._programs.running import running_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches
    from autellix._programs.progress import Progress

ATTRIBUTE = "_autellix_arrivals"
"""The attribute of a flow with the progress of each event that a listener waits for."""


def instrument_flows(patches: Patches, module: ModuleType) -> None:
    """Let a listener of CrewAI's `and_` follow all its events."""
    patches.apply(module, "Flow._condition_met", before(_note_arrival))
    patches.apply(module, "Flow._execute_single_listener", around_async(_join))


def _note_arrival(flow: Any, condition: Any, event: str, listener: str) -> None:
    """Note how far the task has come that reports an event, if a listener waits for it and for others."""
    if not isinstance(condition, str) and _is_in(condition, event):
        arrivals: dict[str, Progress] = vars(flow).setdefault(ATTRIBUTE, {}).setdefault(str(listener), {})
        arrivals[str(event)] = running_thread().progress()


def _is_in(condition: Any, event: str) -> bool:
    if isinstance(condition, str):
        return condition == event
    return any(_is_in(part, event) for parts in condition.values() for part in parts)


def _join(flow: Any, listener: str, *_args: object, **_kwargs: object) -> None:
    for progress in vars(flow).get(ATTRIBUTE, {}).pop(str(listener), {}).values():
        running_thread().follow(progress)
