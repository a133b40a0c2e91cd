"""The cases for ports of identity, saturation, order and admission, against what we run ourselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.balance import EngineLoad
from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.statistics import ProgramStatistics, SizeSpread, TokenCost
from autellix_backend.core.table import Program
from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.gateway.engines.ordering import PolicyOrdering
from autellix_backend.gateway.identity.aliases import resolve_aliases
from autellix_backend.observe.settled_call import Usage
from autellix_wire.ids import InvalidIdError

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("epp.json").read_text("utf-8"))
DIGITS = 1e-9
"""The relative difference that another logarithm may make."""


def each(section: str) -> pytest.MarkDecorator:
    """Parametrise a test with the cases of a section."""
    return pytest.mark.parametrize("case", VECTORS[section], ids=lambda case: case["name"])


@each("identity")
def test_the_program_of_a_request(case: dict[str, Any]) -> None:
    message = {"model": "m", "messages": [], **case.get("body", {})}
    fields = parse_body(json.dumps(message).encode(), CHAT_COMPLETIONS).fields
    if "error" in case:
        with pytest.raises(InvalidIdError, match=case["error"]):
            resolve_aliases(case["headers"], fields)
        return
    found = resolve_aliases(case["headers"], fields)
    assert found.program == case["program"]
    assert (found.named_by and found.named_by.source) == case.get("source")
    named = (found.thread, found.parent, found.agent, found.final is not None)
    assert named == (case.get("thread"), case.get("parent"), case.get("agent"), case.get("final", False))


@each("saturation")
def test_the_saturation_of_engines_and_of_their_pool(case: dict[str, Any]) -> None:
    found = [load_of(engine).saturation for engine in case["engines"]]
    assert found == case["each"]
    assert sum(found) / len(found) == case["pool"]


def load_of(engine: dict[str, Any]) -> EngineLoad:
    memory = engine.get("memory")
    return EngineLoad(
        name="engine",
        running=engine["running"],
        waiting=engine["waiting"],
        slots=engine["slots"],
        prefill_s_per_token=0.0,
        decode_s_per_token=0.0,
        memory=None if memory is None else report_of(**memory),
    )


def report_of(capacity_tokens: float, tokens: int) -> MemoryReport:
    return MemoryReport(capacity_tokens=capacity_tokens, active_tokens=tokens, active_programs=1)


@each("spread")
def test_the_spread_of_sizes(case: dict[str, Any]) -> None:
    sizes = SizeSpread()
    for work in case["works"]:
        sizes.add(work)
    assert sizes.value == pytest.approx(case["spread"], rel=DIGITS)


@each("order")
def test_the_order_of_programs(case: dict[str, Any]) -> None:
    statistics = ProgramStatistics()
    statistics.sizes_of("").known = case["spread"]
    statistics.on_live(0.0)
    statistics.on_idle(case["response_s"])
    statistics.on_live(case["response_s"])
    boost = ProgramBoost(SchedulerConfig().boost, statistics, TokenCost(case["token_s"]))
    boost.renew(case["response_s"])
    assert boost.strength_s == pytest.approx(case["strength_s"], rel=DIGITS)
    keys = {program["id"]: boost.key_s(entry(program)) for program in case["programs"]}
    expected = {program["id"]: program["key_s"] for program in case["programs"]}
    assert keys == pytest.approx(expected, rel=DIGITS)
    assert sorted(keys, key=lambda name: keys[name]) == case["order"]


def entry(program: dict[str, Any]) -> Program:
    return Program(
        program_id=program["id"],
        created_s=program["arrival_s"],
        work=program["work"],
        waiting_work=program.get("waiting_work", 0.0),
    )


@each("admission")
def test_the_calls_that_are_sent(case: dict[str, Any]) -> None:
    ordering = PolicyOrdering(SchedulerConfig(), case["slots"], case["kv_tokens"])
    for event in case["events"]:
        now = float(event["at_s"])
        if "enter" in event:
            ordering.enter(arrival(event), now)
        elif "leave" in event:
            usage = Usage(event["prompt"], event["output"], event["cached"])
            ordering.leave(event["leave"], now, usage)
        elif "end" in event:
            ordering.on_program_ended(event["end"], now)
        else:
            assert sent(ordering, now) == event["sent"], event
        ordering.check()


def arrival(event: dict[str, Any]) -> Arrival:
    context = Context(event["tokens"], prefix=event.get("prefix"))
    return Arrival(event["enter"], event["enter"].partition("-")[0], context=context)


def sent(ordering: PolicyOrdering, now: float) -> list[str]:
    calls = []
    while (key := ordering.next(now)) is not None:
        ordering.send(key, now)
        calls.append(key)
    return calls
