"""A call inside a simulated engine."""

from __future__ import annotations

from autellix_backend.core.call import Call, CallRecord
from autellix_backend.gateway.recording.trace import CallTrace
from autellix_lab.sim.kv import Segment
from autellix_lab.workload.prefixes import SystemPrefix

__all__ = ["BlockKey", "EngineCall"]

BlockKey = tuple[str | None, int]
"""What a block of a context is known by: the call or system prefix that has it first, and its place."""


class EngineCall:
    """A call with its prompt and output tokens, of which `computed` are in KV blocks.

    In every step, a decoding call has one token more than it has computed. It is not updated step by step:
    `computed` and `generated` hold as of `since_step`, until the engine brings them up to date.
    """

    __slots__ = (
        "arrival_s",
        "base",
        "cached_tokens",
        "call_id",
        "chunk",
        "class_name",
        "computed",
        "content",
        "epoch",
        "expected_s",
        "expected_work",
        "generated",
        "has_started",
        "is_decoding",
        "is_swapped",
        "load_blocks",
        "loaded_tokens",
        "output_tokens",
        "parents",
        "prefix_key",
        "prefix_tokens",
        "program_id",
        "prompt_tokens",
        "ready_s",
        "recomputed_tokens",
        "record",
        "segment",
        "shared_tokens",
        "since_cost_s",
        "since_step",
        "state",
        "trace",
    )

    def __init__(
        self,
        call_id: str,
        program_id: str,
        trace: CallTrace,
        *,
        parents: tuple[str, ...],
        prefix: SystemPrefix | None = None,
        class_name: str = "",
        expected_s: float | None = None,
        expected_work: float | None = None,
    ) -> None:
        self.call_id = call_id
        self.program_id = program_id
        self.trace = trace
        self.parents = parents
        self.base: EngineCall | None = None
        """The call on the same engine whose prefix it shares, if any."""
        self.prefix_tokens = 0 if prefix is None else prefix.tokens[trace.id]
        """Leading prompt tokens in the system prefix that its program shares with others."""
        self.prefix_key = prefix.key if prefix is not None and self.prefix_tokens else None
        """Names that prefix; None if the prompt does not begin with it."""
        self.class_name = class_name
        self.expected_s = expected_s
        self.expected_work = expected_work
        self.prompt_tokens = trace.prefill_tokens
        self.output_tokens = max(1, trace.decode_tokens)
        self.shared_tokens = trace.shared_prefix_tokens
        self.arrival_s = 0.0
        self.computed = 0
        self.generated = 0
        self.chunk = 0
        """Tokens that the current step prefills."""
        self.cached_tokens = 0
        """Tokens that its first admission found in the cache."""
        self.recomputed_tokens = 0
        """Tokens that it had computed before a preemption, and that a later admission did not find."""
        self.has_started = False
        self.is_decoding = False
        self.is_swapped = False
        self.loaded_tokens = 0
        """Of its cached tokens, those that came from host memory."""
        self.load_blocks = 0
        """Blocks of the load that begins next."""
        self.ready_s = 0.0
        """When its last load is over."""
        self.content: list[BlockKey] = []
        """The blocks of its context as far as host memory has asked for them."""
        self.epoch = 0
        """Grows whenever the call starts or stops decoding, which voids earlier forecasts."""
        self.since_step = 0
        self.since_cost_s = 0.0
        self.segment: Segment | None = None
        self.state: Call | None = None
        self.record: CallRecord | None = None

    def begin_prefill(self, start: int, tokens: int) -> None:
        """Begin to prefill the first tokens behind those that the cache or the host has."""
        if self.has_started:
            self.recomputed_tokens += max(0, self.computed - start)
        else:
            self.has_started, self.cached_tokens = True, start
        self.computed, self.chunk = start, tokens

    @property
    def known(self) -> int:
        """Prompt and output tokens so far; those beyond `computed` go into the next step."""
        return self.prompt_tokens + self.generated

    @property
    def is_running(self) -> bool:
        """Whether it holds a batch slot."""
        return self.state is not None and self.state.is_running
