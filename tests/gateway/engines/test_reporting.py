"""The one line about an engine, in each state of its report link."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.report_links import FACTS, SECRET, LinkedGateway

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.report_client import LinkState, ReportClient
from autellix_backend.gateway.engines.reporting import Reporting, reporting_of
from autellix_backend.reports.link import EngineFacts

CONFIG = SchedulerConfig(policy="boost")
ADDRESS = "tcp://engine1:9000"


def link_in(
    state: LinkState, *facts: EngineFacts, ranks: int = 1, secret: str | None = SECRET
) -> ReportClient:
    client = LinkedGateway(secret).client
    client.state = state
    client.endpoints = tuple(f"tcp://engine1:{9000 + rank}" for rank in range(ranks))
    client.facts = {each.rank: each for each in facts}
    return client


def said(link: ReportClient | None, *, is_ordered_here: bool = False) -> Reporting:
    return reporting_of(link, CONFIG, is_ordered_here=is_ordered_here, order="ordered by whom it says")


def test_an_engine_of_our_own() -> None:
    link = link_in(LinkState.UP, FACTS)
    link.endpoints = ("ipc:///run/a",)
    found = said(link)
    assert (found.state, found.problem) == ("local", None)
    assert found.text.endswith("4 slots, 4,096 KV tokens")
    link.state = LinkState.ABSENT
    assert said(link).problem == "no report port at ipc:///run/a"


def test_a_server_without_report_port() -> None:
    here = said(None, is_ordered_here=True)
    assert here == Reporting(
        state="none",
        text="a server without the Autellix scheduler: ordered by whom it says; usage is estimated from "
        "tokens",
        is_ordered_here=True,
    )
    assert (here.ordered_by, said(None).ordered_by) == ("gateway", "engine")


def test_an_engine_that_reports() -> None:
    found = said(link_in(LinkState.UP, FACTS))
    assert found == Reporting(
        state="up",
        text="Autellix scheduler 1 on vLLM 0.32.0: policy boost, admission on, 4 slots, 4,096 KV tokens; "
        f"reports from {ADDRESS}",
    )


@pytest.mark.parametrize(
    ("facts", "ranks", "problem"),
    [
        (
            replace(FACTS, policy="plas"),
            1,
            "this gateway has another policy (boost), so their charges differ",
        ),
        (FACTS, 3, "2 of its 3 ranks do not report"),
    ],
)
def test_what_is_wrong_with_an_engine_that_reports(facts: EngineFacts, ranks: int, problem: str) -> None:
    found = said(link_in(LinkState.UP, facts, ranks=ranks))
    assert found.problem is not None
    assert problem in found.problem
    assert found.text.endswith(found.problem)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (
            replace(FACTS, is_degraded=True),
            "it runs vLLM's own order: the Autellix scheduler failed there (see the engine's log)",
        ),
        (
            replace(FACTS, is_degraded=True, problem="this vLLM 0.34 lacks waiting"),
            "it runs vLLM's own order: this vLLM 0.34 lacks waiting",
        ),
    ],
)
def test_an_engine_in_vllms_own_order(facts: EngineFacts, why: str) -> None:
    """The gateway orders its calls, where it can; one rank of several makes it a problem only."""
    assert said(link_in(LinkState.UP, facts), is_ordered_here=True) == Reporting(
        state="up",
        text=f"Autellix scheduler 1 on vLLM 0.32.0: {why}; ordered by whom it says; usage is estimated from "
        "tokens",
        is_ordered_here=True,
        problem=why,
    )
    in_part = said(link_in(LinkState.UP, FACTS, replace(facts, rank=1), ranks=2))
    assert (in_part.is_ordered_here, in_part.problem) == (False, why)
    assert in_part.text.endswith(why)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (
            LinkState.REFUSED,
            (
                f"{ADDRESS} refuses our secret: engine.report_secret is another one there, or not set, "
                "or its Autellix is 0.2 or older (upgrade the engine)"
            ),
        ),
        (LinkState.CONNECTING, f"{ADDRESS} has not answered yet"),
        (LinkState.LOST, f"no more reports from {ADDRESS}"),
    ],
)
def test_an_engine_that_does_not_report(state: LinkState, problem: str) -> None:
    found = said(link_in(state))
    assert (found.state, found.problem) == (state, problem)
    who = "" if state is LinkState.CONNECTING else ": ordered by the engine"
    when = " meanwhile" if state is LinkState.CONNECTING else ""
    assert found.text == f"{problem}{who}; usage is estimated from tokens{when}"


def test_a_gateway_without_a_secret() -> None:
    found = said(link_in(LinkState.REFUSED, secret=None))
    assert found.problem == f"{ADDRESS} wants a secret: engine.report_secret is not set here"


def test_an_engine_that_reported_once_still_orders_its_calls() -> None:
    found = said(link_in(LinkState.LOST, FACTS))
    assert "ordered by the engine (boost); usage is estimated from tokens meanwhile" in found.text


def test_plain_vllm_is_no_problem() -> None:
    found = said(link_in(LinkState.ABSENT), is_ordered_here=True)
    assert (found.state, found.problem) == ("absent", None)
    assert found.text.startswith(f"no report port at {ADDRESS}: ordered by whom it says; usage")
