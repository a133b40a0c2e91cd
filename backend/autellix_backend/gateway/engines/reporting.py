"""What is active at an engine, in one line: who orders its calls, and whether it reports them."""

from __future__ import annotations

from dataclasses import dataclass

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.report_client import LinkState, ReportClient
from autellix_backend.reports.link import EngineFacts

LOCAL, NONE = "local", "none"
ESTIMATED = "usage is estimated from tokens"
"""How calls are charged without reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """What an engine reports to this gateway."""

    state: str
    """`local` over a socket of this machine, `none` without a report address, else the state of the link."""
    text: str
    """Who orders its calls, and how they are charged."""
    is_ordered_here: bool = False
    """Whether the gateway orders its calls, not the engine."""
    problem: str | None = None
    """What an operator should fix."""

    @property
    def ordered_by(self) -> str:
        """`gateway` or `engine`."""
        return "gateway" if self.is_ordered_here else "engine"


def reporting_of(
    link: ReportClient | None, config: SchedulerConfig, *, is_ordered_here: bool, order: str
) -> Reporting:
    """Return what an engine reports.

    Args:
        link: The link to its report address, if it may have one.
        config: The gateway's settings of the scheduler.
        is_ordered_here: Whether the gateway orders its calls if it has no scheduler of ours.
        order: Who orders them then, in words.
    """
    plain = f"{order}; {ESTIMATED}"
    if link is None:
        text = f"a server without the Autellix scheduler: {plain}"
        return Reporting(state=NONE, text=text, is_ordered_here=is_ordered_here)
    if link.is_up and link.runs_own_order:
        return _own_order(link, plain, is_ordered_here=is_ordered_here)
    if link.is_up:
        return _linked(link, config)
    problem = _problem(link)
    if link.state is LinkState.ABSENT and not link.is_local:
        return Reporting(state=link.state, text=f"{problem}: {plain}", is_ordered_here=is_ordered_here)
    facts = link.first_facts
    if facts is not None:
        problem_text = f"{problem}: ordered by the engine ({facts.policy}); {ESTIMATED} meanwhile"
    elif link.state is LinkState.CONNECTING:
        problem_text = f"{problem}; {ESTIMATED} meanwhile"
    else:
        problem_text = f"{problem}: ordered by the engine; {ESTIMATED}"
    return Reporting(state=link.state, text=problem_text, problem=problem)


def _own_order(link: ReportClient, plain: str, *, is_ordered_here: bool) -> Reporting:
    facts, problem = link.first_facts, _degradation(link)
    assert facts is not None
    text = f"Autellix scheduler {facts.version} on vLLM {facts.vllm}: {problem}; {plain}"
    state = LOCAL if link.is_local else link.state
    return Reporting(state=state, text=text, problem=problem, is_ordered_here=is_ordered_here)


def _degradation(link: ReportClient) -> str | None:
    """Return that the engine runs vLLM's own order, and why; None if it does not."""
    if link.degraded is None:
        return None
    why = link.degraded.problem or "the Autellix scheduler failed there (see the engine's log)"
    return f"it runs vLLM's own order: {why}"


def _linked(link: ReportClient, config: SchedulerConfig) -> Reporting:
    facts = link.first_facts
    assert facts is not None
    memory = "" if facts.kv_tokens is None else f", {facts.kv_tokens:,} KV tokens"
    where = "" if link.is_local else f"; reports from {link.address}"
    text = (
        f"Autellix scheduler {facts.version} on vLLM {facts.vllm}: policy {facts.policy}, admission "
        f"{'on' if facts.has_admission else 'off'}, {facts.slots} slots{memory}{where}"
    )
    problem = _disagreement(link, facts, config)
    state = LOCAL if link.is_local else link.state
    return Reporting(state=state, text=f"{text}; {problem}" if problem else text, problem=problem)


def _disagreement(link: ReportClient, facts: EngineFacts, config: SchedulerConfig) -> str | None:
    if problem := _degradation(link):
        return problem
    if facts.policy != config.policy:
        return f"this gateway has another policy ({config.policy}), so their charges differ"
    if missing := len(link.endpoints) - len(link.facts):
        return f"{missing} of its {len(link.endpoints)} ranks do not report"
    return None


def _problem(link: ReportClient) -> str:
    address = link.address
    if link.state is LinkState.ABSENT:
        return f"no report port at {address}"
    if link.state is LinkState.REFUSED and not link.has_secret:
        return f"{address} wants a secret: engine.report_secret is not set here"
    if link.state is LinkState.REFUSED:
        return (
            f"{address} refuses our secret: engine.report_secret is another one there, or not set, or its "
            "Autellix is 0.2 or older (upgrade the engine)"
        )
    if link.state is LinkState.OTHER:
        return f"{address} cannot be understood ({link.misunderstanding})"
    if link.state is LinkState.LOST:
        return f"no more reports from {address}"
    return f"{address} has not answered yet"
