"""Metrics of settled calls; labels take values from fixed sets only, so their number is bounded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from autellix_backend.observe.call_facts import CallFacts

LATENCY_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class CallMetrics:
    """A sink of calls that counts them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._wait_s = Histogram(
            "autellix_engine_wait_seconds",
            "Waiting of a call in its engine's queues, by the level that it ended in.",
            ("level",),
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._first_token_s = Histogram(
            "autellix_time_to_first_token_seconds",
            "From the arrival of a streamed call to the first bytes of its answer.",
            ("engine",),
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._tokens = Counter(
            "autellix_tokens",
            "Tokens of settled calls: of prompts, those of them found in the prefix cache, and of answers.",
            ("engine", "kind"),
            registry=registry,
        )
        self._moves = Counter(
            "autellix_level_changes",
            "Calls' moves between levels: sunk by a used-up quantum, or lifted by anti-starvation.",
            ("engine", "kind"),
            registry=registry,
        )
        self.of_engines = (self._first_token_s, self._tokens, self._moves)
        """Those that have a label for the engine."""

    def take(self, facts: CallFacts) -> None:
        """Count a call."""
        if facts.level is not None:
            self._wait_s.labels(str(facts.level)).observe(facts.wait_s)
        if facts.first_token_s is not None and facts.outcome == "ok":
            self._first_token_s.labels(facts.engine).observe(facts.first_token_s)
        for kind, tokens in (
            ("prompt", facts.prompt_tokens),
            ("cached", facts.cached_tokens),
            ("output", facts.output_tokens),
        ):
            self._tokens.labels(facts.engine, kind).inc(tokens or 0)
        self._moves.labels(facts.engine, "demotion").inc(facts.demotions or 0)
        self._moves.labels(facts.engine, "promotion").inc(facts.promotions or 0)
