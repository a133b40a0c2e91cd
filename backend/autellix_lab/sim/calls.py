"""A call inside a simulated engine."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field

from autellix_backend.core.call import Call, CallRecord
from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_lab.sim.kv import Segment
from autellix_lab.workload.prefixes import SystemPrefix
from autellix_lab.workload.trace import CallTrace

Span = tuple[str, int, int]
"""Adjacent blocks of a context: the call or system prefix that computed them first, the first and the end."""


@dataclass(slots=True, eq=False, repr=False)
class EngineCall:
    """A call with its prompt and output tokens, of which `computed` are in KV blocks.

    In every step, a decoding call has one token more than it has computed. It is not updated step by step:
    `computed` and `generated` hold as of `since_step`, until the engine brings them up to date.
    """

    call_id: str
    program_id: str
    trace: CallTrace
    _: KW_ONLY
    parents: tuple[str, ...]
    prefix: InitVar[SystemPrefix | None] = None
    is_identified: bool = True
    """Whether its client names its program; else the engine takes it for a program of its own."""
    hints: Hints = NO_HINTS
    expected_s: float | None = None
    base: EngineCall | None = None
    """The call on the same engine whose prefix it shares, if any."""
    prompt_tokens: int = field(init=False)
    output_tokens: int = field(init=False)
    shared_tokens: int = field(init=False)
    prefix_tokens: int = field(init=False)
    """Leading prompt tokens in the system prefix that its program shares with others."""
    prefix_key: str | None = field(init=False)
    """Names that prefix; None if the prompt does not begin with it."""
    arrival_s: float = 0.0
    computed: int = 0
    generated: int = 0
    chunk: int = 0
    """Tokens that the current step prefills."""
    cached_tokens: int = 0
    """Tokens that its first admission found in the cache."""
    recomputed_tokens: int = 0
    """Tokens that it had computed before a preemption, and that a later admission did not find."""
    has_started: bool = False
    is_decoding: bool = False
    is_swapped: bool = False
    loaded_tokens: int = 0
    """Of its cached tokens, those that came from host memory."""
    load_blocks: int = 0
    """Blocks of the load that begins next."""
    ready_s: float = 0.0
    """When its last load is over."""
    spans: list[Span] = field(default_factory=list)
    """The blocks of others that its context begins with, once host memory has asked for them."""
    epoch: int = 0
    """Grows whenever the call starts or stops decoding, which voids earlier forecasts."""
    since_step: int = 0
    since_cost_s: float = 0.0
    segment: Segment | None = None
    state: Call | None = None
    record: CallRecord | None = None

    def __post_init__(self, prefix: SystemPrefix | None) -> None:
        self.prompt_tokens = self.trace.prefill_tokens
        self.output_tokens = max(1, self.trace.decode_tokens)
        self.shared_tokens = self.trace.shared_prefix_tokens
        self.prefix_tokens = 0 if prefix is None else prefix.tokens[self.trace.id]
        self.prefix_key = prefix.key if prefix is not None and self.prefix_tokens else None

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
    def rank(self) -> tuple[int, float, int]:
        """Its position in the machine's order."""
        assert self.state is not None
        return self.state.rank

    @property
    def is_running(self) -> bool:
        """Whether it holds a batch slot."""
        return self.state is not None and self.state.is_running
