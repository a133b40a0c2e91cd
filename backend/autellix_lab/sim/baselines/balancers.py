"""The balancers of other routers, by their published rules; simulated only.

Rules:

- `power_of_two` (vLLM router): of two engines drawn at random, the one with fewer calls.
- `session_hash` (vLLM router): a ring of hashes, 160 of each engine; a program has the engine of the first
  one behind the hash of its id.
- `cache_aware` (SGLang): the engine that was sent the longest beginning of the prompt, if that is more than
  0.3 of it, else the one that was sent the least text. But the one with the fewest calls where another has 64
  more and 1.5 times as many.
- `scorers` (llm-d): the engine with the highest 3 * prefix + 2 * queue + 2 * (1 - KV usage), where prefix is
  the share of the prompt's beginning that was sent there, and queue goes from 0 for the most waiting calls to
  1 for the fewest.

Sources: github.com/vllm-project/router, `src/policies/power_of_two.rs` and `consistent_hash.rs`;
github.com/sgl-project/sglang, `sgl-router/src/policies/cache_aware.rs`, defaults of its command line;
github.com/kubernetes-sigs/gateway-api-inference-extension, `pkg/epp/framework/plugins/scheduling/scorer`,
weights of llm-d's guide to inference scheduling. Read in November 2026.

A router knows what it has sent, and not what an engine has evicted. SGLang's remembers 67,108,864 characters
for each engine, the latest used; llm-d's the first 256 blocks of prompts, as many blocks as the engine has.

Assumed: four characters a token. A router sees the calls of an engine as they are, where real ones count
their own or poll. The beginning of a prompt that is known is what the trace says that the program's calls and
its system prefix have in common. The KV usage of an engine is that of the prompts that wait or run there. Of
several engines with the longest beginning, the first gets the call; of equal scores, a random one.
"""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from autellix_backend.core.balance import ArrivingCall, Balancer, EngineLoad, FinishedCall
from autellix_backend.core.balance import make_balancer as make_product_balancer
from autellix_backend.core.balance.base import able, accepting, least_used
from autellix_backend.core.names import present_name

RING_POINTS = 160
MATCH_SHARE = 0.3
MOST_APART, TIMES_APART = 64, 1.5
"""The difference and the ratio of calls from which on engines are out of balance; both must be exceeded."""
TREE_TOKENS = 67_108_864 // 4
SCORED_TOKENS = 256 * 16
"""Of a prompt, those that llm-d's prefix scorer reads."""
PREFIX_WEIGHT, QUEUE_WEIGHT, KV_WEIGHT = 3.0, 2.0, 2.0


@dataclass(frozen=True, slots=True)
class TracedCall(ArrivingCall):
    """A call of a trace, with the lengths of the beginnings that routers would recognise by their text."""

    repeated_tokens: int = 0
    """The beginning that an earlier call of its program has."""
    prefix_tokens: int = 0
    """The beginning that lies in `prefix`."""


class _Assigned:
    """The beginnings of prompts that went to one engine, of which the least recently used are forgotten."""

    def __init__(self, limit: float, read: float = math.inf) -> None:
        self.tokens = 0
        self._limit, self._read = limit, read
        self._ends: OrderedDict[tuple[str, bool], int] = OrderedDict()
        """Where each known text ends, by program or by prefix."""
        self._sizes: dict[tuple[str, bool], int] = {}

    def share(self, call: TracedCall) -> float:
        """Return the share of a prompt, as far as it is read, that is known."""
        own = min(self._ends.get((call.program_id, True), 0), call.repeated_tokens)
        common = min(self._ends.get((call.prefix, False), 0), call.prefix_tokens)
        return max(own, common) / max(1.0, min(call.prompt_tokens, self._read))

    def add(self, call: TracedCall) -> None:
        """Add the prompt of a call."""
        end, prefix_end = (int(min(n, self._read)) for n in (call.prompt_tokens, call.prefix_tokens))
        if prefix_end:
            self._put((call.prefix, False), prefix_end, prefix_end)
        self._put((call.program_id, True), end, end - prefix_end)
        while self.tokens > self._limit and len(self._ends) > 1:
            key, _ = self._ends.popitem(last=False)
            self.tokens -= self._sizes.pop(key)

    def _put(self, key: tuple[str, bool], end: int, size: int) -> None:
        self.tokens += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self._ends[key] = end
        self._ends.move_to_end(key)


class PowerOfTwo(Balancer):
    """The better of two engines drawn at random."""

    name: ClassVar[str] = "power_of_two"

    def __init__(self) -> None:
        self._random = random.Random(self.name)

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the one with fewer calls, the first drawn of equal ones."""
        engines = able(call, accepting(loads))
        return least_used(self._random.sample(engines, min(2, len(engines)))).name


class SessionHash(Balancer):
    """Each program has one engine, by its id alone."""

    name: ClassVar[str] = "session_hash"

    def __init__(self) -> None:
        self._ring: list[tuple[int, str]] = []
        self._names: set[str] = set()

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the engine of the first point at or behind the program's, round the ring."""
        names = {load.name for load in able(call, accepting(loads))}
        if names != self._names:
            points = [(_hash(f"{name}:{point}"), name) for name in names for point in range(RING_POINTS)]
            self._ring, self._names = sorted(points), names
        return self._ring[bisect_left(self._ring, (_hash(call.program_id), "")) % len(self._ring)][1]


class CacheAware(Balancer):
    """SGLang's: by prefix while engines are in balance."""

    name: ClassVar[str] = "cache_aware"

    def __init__(self) -> None:
        self._trees: dict[str, _Assigned] = {}

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose by calls where those differ too much, else by the text that was sent."""
        assert isinstance(call, TracedCall)
        engines = able(call, accepting(loads))
        trees = {load.name: self._trees.setdefault(load.name, _Assigned(TREE_TOKENS)) for load in engines}
        calls = [load.calls for load in engines]
        if max(calls) - min(calls) > MOST_APART and max(calls) > TIMES_APART * min(calls):
            name = least_used(engines).name
        else:
            name = max(trees, key=lambda name: trees[name].share(call))
            if trees[name].share(call) <= MATCH_SHARE:
                name = min(trees, key=lambda name: trees[name].tokens)
        trees[name].add(call)
        return name


class Scorers(Balancer):
    """llm-d's: a weighted sum of scores for prefix, queue and KV usage."""

    name: ClassVar[str] = "scorers"

    def __init__(self) -> None:
        self._sent: dict[str, _Assigned] = {}
        self._in_flight: Counter[str] = Counter()
        """Prompt tokens of the calls that wait or run on each engine."""
        self._random = random.Random(self.name)

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the engine with the highest score."""
        assert isinstance(call, TracedCall)
        engines = able(call, accepting(loads))
        waiting = [load.waiting for load in engines]
        scores = {
            load.name: self._score(load, call, least=min(waiting), most=max(waiting)) for load in engines
        }
        best = max(scores.values())
        name = self._random.choice([name for name, score in scores.items() if score == best])
        self._sent[name].add(call)
        self._in_flight[name] += call.prompt_tokens
        return name

    def finished(self, call: FinishedCall) -> None:
        """Take a call from those of its engine."""
        self._in_flight[call.engine] -= call.prompt_tokens

    def _score(self, load: EngineLoad, call: TracedCall, *, least: int, most: int) -> float:
        sent = self._sent.setdefault(load.name, _Assigned(load.kv_tokens, SCORED_TOKENS))
        queue = (most - load.waiting) / (most - least) if most > least else 1.0
        usage = min(1.0, self._in_flight[load.name] / load.kv_tokens)
        return PREFIX_WEIGHT * sent.share(call) + QUEUE_WEIGHT * queue + KV_WEIGHT * (1 - usage)


_BALANCERS: dict[str, Callable[[], Balancer]] = {
    balancer.name: balancer for balancer in (PowerOfTwo, SessionHash, CacheAware, Scorers)
}
RIVAL_BALANCER_NAMES = tuple(_BALANCERS)


def make_balancer(name: str, threshold_tokens: int) -> Balancer:
    """Return a fresh balancer of another router or of the product.

    Raises:
        UnknownBalancerError: neither has one of this name; the message lists the product's.
    """
    spelled = present_name(name, _BALANCERS)
    if spelled in _BALANCERS:
        return _BALANCERS[spelled]()
    return make_product_balancer(name, threshold_tokens)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
