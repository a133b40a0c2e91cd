"""The classes of live programs, and the spread of each tenant's sizes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.conftest import HELLO

from autellix_backend.identity.classes import LEAST_PROGRAMS, ProgramClasses, class_id
from autellix_backend.stores.base import CallStart, ProgramEnd


def begin(
    classes: ProgramClasses,
    program: str,
    kind: str | None = "chat",
    tenant: str = "",
    *,
    offers_tools: bool = True,
    name: str | None = None,
) -> str:
    known = None if kind is None else class_id(tenant, kind)
    start = CallStart(key=program, call_id="c", program_id=program, class_id=known, name=name)
    return classes.on_call_begun(start, offers_tools=offers_tools)


def test_the_spread_is_that_of_a_tenants_ended_programs() -> None:
    classes = ProgramClasses()
    for number in range(LEAST_PROGRAMS):
        assert classes.spread("red") is None
        begin(classes, "p", tenant="red")
        classes.on_program_ended(ProgramEnd(program_id="p", work=10.0 if number % 2 else 1000.0))
        # Another gateway's, of which this one learns from the table.
        classes.on_program_ended(ProgramEnd(program_id="q", class_id="blue/chat", work=5.0))
    red, blue = classes.spread("red"), classes.spread("blue")
    assert red is not None and blue is not None
    assert red > 1.0 > blue


async def test_a_call_without_identity_leaves_the_spread_as_it_is(serve: Any) -> None:
    async with serve(policy="boost") as rig:
        for number in range(LEAST_PROGRAMS):
            await rig.chat()
            await rig.chat({"X-Autellix-Program-ID": f"p{number}", "X-Autellix-Final": "true"})
        await rig.chat({"X-Autellix-Program-ID": "last"})
        sizes = rig.app.state.gateway.classes._sizes[""]
    assert len(sizes) == LEAST_PROGRAMS


def test_the_first_call_decides_the_class_until_the_program_ends() -> None:
    classes = ProgramClasses()
    begin(classes, "p", None)
    assert (classes.is_open("p", offers_tools=False), len(classes)) == (True, 0)
    assert [begin(classes, "p", name) for name in ("chat", "tree", None)] == ["/chat"] * 3
    assert len(classes) == 1
    classes.on_program_ended(ProgramEnd(program_id="p", work=7.0))
    classes.on_program_ended(ProgramEnd(program_id="unknown"))
    assert (begin(classes, "p", None), len(classes)) == ("", 0)


def test_a_side_call_without_tools_decides_the_class_until_one_with_tools_comes() -> None:
    classes = ProgramClasses()
    assert begin(classes, "p", "title", offers_tools=False) == "/title"
    assert begin(classes, "p", "summary", offers_tools=False) == "/title"
    assert begin(classes, "p", "agent") == "/agent"
    assert begin(classes, "p", "title", offers_tools=False) == "/agent"
    assert begin(classes, "p", "sub-agent") == "/agent"
    classes.on_program_ended(ProgramEnd(program_id="p"))
    assert begin(classes, "p", "title", offers_tools=False) == "/title"
    classes.on_program_ended(ProgramEnd(program_id="p"))
    assert not classes._provisional


def test_a_name_decides_the_class_with_any_call() -> None:
    classes = ProgramClasses()
    assert begin(classes, "p", "react", offers_tools=False, name="react") == "/react"
    assert begin(classes, "p", "prompt-1") == "/react"


async def test_the_class_of_an_agent_that_asks_for_a_title_first_is_its_own(serve: Any) -> None:
    tools = [{"type": "function", "function": {"name": "read"}}]
    messages = [{"role": "system", "content": "You are an agent."}, *HELLO["messages"]]
    async with serve(policy="boost") as rig:
        await rig.chat(messages=messages, tools=tools)
        await rig.chat({"X-Session-ID": "s"}, messages=[{"role": "system", "content": "Make a title."}])
        await rig.chat({"X-Session-ID": "s"}, messages=messages, tools=tools)
        await rig.chat({"X-Session-ID": "s"}, messages=[{"role": "system", "content": "Make a title."}])
        plain, title, agent, again = (call.xargs["autellix_class"] for call in rig.engine.calls)
    assert title != agent == plain == again


@pytest.mark.parametrize(("has_prompt", "name"), [(True, "/prompt-"), (False, "/unnamed")])
async def test_a_program_without_a_name_has_the_class_of_its_prompt(
    serve: Any, has_prompt: bool, name: str
) -> None:
    system = [{"role": "system", "content": "be brief"}] if has_prompt else []
    async with serve(policy="boost") as rig:
        await rig.chat({"X-Autellix-Program-ID": "p"}, messages=[*system, *HELLO["messages"]])
        await rig.chat({"X-Autellix-Program-ID": "p"})
        first, second = (call.xargs["autellix_class"] for call in rig.engine.calls)
    assert first == second
    assert first.startswith(name)
