"""Where an implicit call belongs, by what is known of the calls before it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from autellix_backend.identity.implicit import ImplicitArrival, ImplicitPlace, place
from autellix_backend.stores.base import Adoption, AnswerSource, ImplicitCall

TENANT = "lab"
PROCESS = "lab/process"


def known(call_id: str, program: str, **fields: Any) -> AnswerSource:
    return AnswerSource(program, "e", ImplicitCall(**{"call_id": call_id, "thread": "0", **fields}))


def placed(
    *parents: AnswerSource,
    continued: AnswerSource | None = None,
    extended: str | None = None,
    unknown: tuple[str, ...] = (),
    offers_tools: bool = False,
    thread: str = "0",
) -> ImplicitPlace:
    calls = {source.implicit.call_id: source for source in parents if source.implicit is not None}
    arrival = ImplicitArrival(
        call_id="now",
        program=PROCESS,
        thread=thread,
        parents=(*calls, *unknown),
        owner=None,
        transcript="digest",
        offers_tools=offers_tools,
    )
    return place(arrival, TENANT, continued=continued, extended=extended, parents=calls)


LOOSE = known("loose", PROCESS, is_loose=True)
FINAL = known("final", "lab/agent")
TOOL = known("tool", "lab/agent", calls_tools=True)
NESTED = known("nested", "lab/agent", is_nested=True)


def test_a_prompt_is_its_process_s() -> None:
    found = placed(LOOSE)
    assert (found.program, found.parents, found.call.is_loose) == (PROCESS, ("loose",), True)
    # The agent before it is another program.
    assert placed(LOOSE, FINAL).parents == ("loose",)


def test_an_agent_is_a_program_of_its_own() -> None:
    found = placed(LOOSE, FINAL, offers_tools=True)
    assert (found.program, found.parents, found.adopts) == ("lab/now", (), None)
    assert not found.call.is_loose


@pytest.mark.parametrize("offers_tools", [True, False])
@pytest.mark.parametrize("before", [TOOL, NESTED])
def test_what_a_tool_does_is_its_program_s(before: AnswerSource, offers_tools: bool) -> None:
    """In line it is a thread of its own; in a branch the client's thread says so."""
    assert before.implicit is not None
    inline = placed(before, offers_tools=offers_tools)
    assert (inline.program, inline.thread, inline.call.is_nested) == ("lab/agent", "now", True)
    branch = placed(before, offers_tools=offers_tools, thread="7")
    assert (branch.program, branch.thread, branch.parents) == ("lab/agent", "7", (before.implicit.call_id,))


def test_a_continued_answer_decides() -> None:
    """Also where what the call depends on says otherwise, and in the thread of its conversation."""
    sub = AnswerSource("lab/agent", "e", ImplicitCall("s", "0", conversation="s", is_nested=True))
    found = placed(LOOSE, continued=sub, offers_tools=True)
    assert (found.program, found.thread, found.call.is_nested, found.parents) == ("lab/agent", "s", True, ())


def test_an_answer_of_a_client_without_ids_may_be_continued() -> None:
    found = placed(continued=AnswerSource("lab/plain", "e"))
    assert (found.program, found.thread, found.adopts) == ("lab/plain", "0", None)


@pytest.mark.parametrize("is_tool", [True, False])
def test_a_loose_call_that_is_continued_becomes_a_program(is_tool: bool) -> None:
    """At the engine that has its context; so it does when its answer calls a tool with calls of its own."""
    before = known("loose", PROCESS, is_loose=True, calls_tools=is_tool)
    found = placed(before) if is_tool else placed(before, continued=before)
    assert (found.program, found.adopts) == ("lab/loose", Adoption(PROCESS, "loose"))
    assert (found.parents, found.engine) == (("loose",), "e")
    # A second continuation finds it moved.
    again = placed(replace(FINAL, program_id="lab/loose"), before, continued=before)
    assert again.parents == ("final", "loose")


def test_a_transcript_alone_says_only_the_program() -> None:
    found = placed(extended="lab/chat")
    assert (found.program, found.parents, found.call.is_loose) == ("lab/chat", (), False)


def test_calls_that_nobody_knows_leave_what_it_depends_on_unknown() -> None:
    """They failed, or have not ended: it is no root, unless it begins a program."""
    assert placed(unknown=("lost",)).parents is None
    assert placed(LOOSE, unknown=("lost",)).parents == ("loose",)
    assert placed(unknown=("lost",), offers_tools=True).parents == ()
    arrival = ImplicitArrival("now", PROCESS, "0", None, None, None, offers_tools=False)
    assert place(arrival, TENANT, continued=None, extended=None, parents={}).parents is None
