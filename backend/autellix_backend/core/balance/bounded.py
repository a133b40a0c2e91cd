"""Locality with a bound: a pin yields where another engine is cheaper, with all that a move costs.

Each program is pinned to the engine of its last call, whose cache holds its context. A call goes to the
engine where it costs least (`cost.py`). Two rules keep programs from hopping:

1. A pin yields only if another engine costs less than (1 - MARGIN) of staying. There the context has to be
   prefilled again, and the batch waits for it.
2. A program that has moved is assumed to have lost its context on the engine it left. So moving back costs
   as much again, and the queues must have changed by more than both prices before it does.

A program without a pin loses nothing by going anywhere, and binds all its later calls: for it, waiting counts
more (NEW_WAIT_WEIGHT), which keeps slots of slow engines from idling while fast ones have queues.

An engine's cache counts as full at FULL_SHARE of its blocks, for contexts grow. In a full cache each added
context evicts several times its length, up to EVICTED_TIMES: the least recently used blocks go first, and
those are the ones that are needed next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace

from autellix_backend.core.balance.base import (
    ArrivingCall,
    Balancer,
    EngineLoad,
    FinishedCall,
    LostEngines,
    able,
    accepting,
)
from autellix_backend.core.balance.cost import MeanCall, cost_s

MARGIN = 0.3
NEW_WAIT_WEIGHT = 4.0
FULL_SHARE = 0.8
EVICTED_TIMES = 3.0
FIRST_GUESS = MeanCall(new_tokens=300.0, output_tokens=200.0, calls_after=4.0)
LEARNING_RATE = 0.02
"""Weight of the latest call, or program, in the means: about the last fifty count."""


@dataclass(frozen=True, slots=True)
class EnginePin:
    """The engine of a program."""

    engine: str
    context_tokens: int
    """The program's context there (tokens): prompt and answer of its last call."""
    calls: int
    """Calls that the program has made so far."""


class LocalityBounded(Balancer):
    """Pins that yield; state is one pin for each program until it is forgotten."""

    name: ClassVar[str] = "locality_bounded"

    def __init__(self) -> None:
        self._pins: dict[str, EnginePin] = {}
        self._pinned_tokens: Counter[str] = Counter()
        """Contexts of all programs pinned to an engine."""
        self._mean = FIRST_GUESS
        self._lost = LostEngines()

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the engine where the call costs least, or the program's own if that is hardly more."""
        engines = able(call, self._accepting(loads))
        pin = self._pins.get(call.program_id)
        costs = {load.name: self._cost_s(load, call, pin) for load in engines}
        engine = min(costs, key=costs.__getitem__)
        if pin is not None and pin.engine in costs and costs[engine] > (1 - MARGIN) * costs[pin.engine]:
            engine = pin.engine
        calls = 1 if pin is None else pin.calls + 1
        self._pin(call.program_id, EnginePin(engine, call.prompt_tokens, calls))
        return engine

    def finished(self, call: FinishedCall) -> None:
        """Learn how long calls are, and that the answer is in the cache too."""
        self._learn(call)
        pin = self._pins.get(call.program_id)
        if pin is not None and pin.engine == call.engine:
            context_tokens = max(pin.context_tokens, call.prompt_tokens + call.output_tokens)
            self._pin(call.program_id, EnginePin(pin.engine, context_tokens, pin.calls))

    def forget(self, program_id: str) -> None:
        """Drop a program that has ended, and learn how many calls it made; it may be unknown."""
        pin = self._pins.get(program_id)
        if pin is not None:
            calls_after = _moved(self._mean.calls_after, pin.calls - 1)
            self._mean = replace(self._mean, calls_after=calls_after)
        self._unpin((program_id,))

    def check(self) -> None:
        """Assert the invariants."""
        pinned: Counter[str] = Counter()
        for pin in self._pins.values():
            pinned[pin.engine] += pin.context_tokens
        assert +self._pinned_tokens == +pinned

    def _accepting(self, loads: Sequence[EngineLoad]) -> list[EngineLoad]:
        """Return the engines that accept calls; those that stopped doing so lose their programs."""
        engines = accepting(loads)
        if gone := self._lost.update(engines):
            self._leave_engines(gone)
        return engines

    def _leave_engines(self, gone: set[str]) -> None:
        """Drop the programs of engines that no longer accept calls."""
        self._unpin(program for program, pin in list(self._pins.items()) if pin.engine in gone)

    def _cost_s(self, load: EngineLoad, call: ArrivingCall, pin: EnginePin | None) -> float:
        prompt_tokens = call.prompt_tokens
        held_tokens = pin.context_tokens if pin is not None and pin.engine == load.name else 0
        pinned_tokens = self._pinned_tokens[load.name] - held_tokens
        prefill_tokens = max(0, prompt_tokens - held_tokens)
        missing_tokens = pinned_tokens + prompt_tokens - FULL_SHARE * load.kv_tokens
        evicted_tokens = min(EVICTED_TIMES * prompt_tokens, max(0.0, missing_tokens))
        wait_weight = NEW_WAIT_WEIGHT if pin is None else 1.0
        return cost_s(
            load, self._mean, prefill_tokens, evicted_tokens=evicted_tokens, wait_weight=wait_weight
        )

    def _pin(self, program_id: str, pin: EnginePin) -> None:
        self._unpin((program_id,))
        self._pins[program_id] = pin
        self._pinned_tokens[pin.engine] += pin.context_tokens

    def _unpin(self, program_ids: Iterable[str]) -> None:
        for program_id in program_ids:
            pin = self._pins.pop(program_id, None)
            if pin is not None:
                self._pinned_tokens[pin.engine] -= pin.context_tokens
                if not self._pinned_tokens[pin.engine]:
                    del self._pinned_tokens[pin.engine]

    def _learn(self, call: FinishedCall) -> None:
        mean = self._mean
        new_tokens = mean.new_tokens
        if call.cached_tokens is not None:
            new_tokens = _moved(new_tokens, call.prompt_tokens - call.cached_tokens)
        output_tokens = _moved(mean.output_tokens, call.output_tokens)
        self._mean = replace(mean, new_tokens=new_tokens, output_tokens=output_tokens)


def _moved(mean: float, latest: float) -> float:
    return mean + LEARNING_RATE * (latest - mean)
