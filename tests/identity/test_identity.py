"""The identity of one request, and the call that results."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.identity.hints import StatedHints
from autellix_backend.identity.identity import Identity, IdentityResolver, read_identity
from autellix_backend.observe.metrics import MAX_VENDOR_HEADERS, GatewayMetrics
from autellix_backend.stores.base import AnswerSource, call_key
from autellix_backend.stores.memory import MemoryStore


def read(**headers: str) -> Identity:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_identity(named, {}, "made")


class Calls:
    """A resolver with a clock of its own that counts the calls."""

    def __init__(self, *, idle_s: float = 1800.0) -> None:
        self.now = 0.0
        self.calls = 0
        self.metrics = GatewayMetrics()
        self.store = MemoryStore(make_policy("plas"), program_idle_s=600, session_ttl_s=30)
        self.resolver = IdentityResolver(
            self.store,
            clock=lambda: self.now,
            idle_s=idle_s,
            on_read=self.metrics.count_identity,
        )

    def resolve(self, headers: dict[str, str], tenant: str = "", **body: Any) -> Identity:
        self.calls += 1
        parsed = parse_body(json.dumps(body).encode(), CHAT_COMPLETIONS)
        fields = parsed.fields
        said = read_identity(headers, fields, f"call-{self.calls}").scoped_to(tenant)
        resolved = asyncio.run(self.resolver.resolve(said, fields, tenant, offers_tools=parsed.offers_tools))
        self.resolver.remember(resolved, tenant)
        return resolved

    def where(self, headers: dict[str, str]) -> tuple[str, str]:
        placed = self.resolve(headers)
        return placed.program, placed.thread


def test_all_headers_are_read() -> None:
    identity = read(
        x_autellix_program_id=" p ",
        x_autellix_program_name="react",
        x_autellix_group="g17",
        x_autellix_thread_id="3",
        x_autellix_thread_name="planner",
        x_autellix_call_id="c",
        x_autellix_parent_ids="a,b",
        x_autellix_flags="implicit, truncated",
        x_autellix_final="true",
    )
    assert identity == Identity(
        session=None,
        program="p",
        name="react",
        stated=StatedHints(Hints(group="g17"), (("group", "X-Autellix-Group"),)),
        thread="3",
        thread_name="planner",
        call="c",
        parents=("a", "b"),
        flags=("implicit", "truncated"),
        is_final=True,
        source="program-header",
        aliases=identity.aliases,
    )


def test_unknown_parents_differ_from_none() -> None:
    assert read().parents is None
    assert read(x_autellix_parent_ids="-").parents == ()


@pytest.mark.parametrize("value", ["", " ", "\x00", "é", "\x1b[31m", "x" * 257, "x" * 10_000])
def test_a_malformed_id_or_name_names_its_header(value: str) -> None:
    with pytest.raises(InvalidIdentityError) as caught:
        read(x_autellix_call_id=value)
    assert caught.value.field == "X-Autellix-Call-ID"
    with pytest.raises(InvalidIdentityError) as caught:
        read(x_autellix_thread_name=value)
    assert caught.value.field == "X-Autellix-Thread-Name"
    with pytest.raises(InvalidIdentityError) as caught:
        read(x_autellix_group=value)
    assert caught.value.field == "X-Autellix-Group"


def test_expectations_are_read() -> None:
    assert read().hints is NO_HINTS
    assert read(x_autellix_expected_calls=" 12 ").hints == Hints(expected_calls=12.0)
    assert read(x_autellix_expected_tokens="300").hints == Hints(expected_tokens=300.0)


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "many", "9" * 13, "\u00b2"])
def test_a_malformed_expectation_names_its_header(value: str) -> None:
    with pytest.raises(InvalidIdentityError) as caught:
        read(x_autellix_expected_calls=value)
    assert caught.value.field == "X-Autellix-Expected-Calls"


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0.0), (" 90 ", 90.0), ("2.5", 2.5), ("9" * 9, 999999999.0)]
)
def test_an_expected_return_is_read(value: str, seconds: float) -> None:
    assert read(x_autellix_expected_return=value).hints.return_s == seconds
    assert read().hints.return_s is None


@pytest.mark.parametrize(
    "value", ["", "-1", "soon", "1e3", ".5", "5.", "nan", "inf", "9" * 10, "1,5", "\u0663", "x" * 10_000]
)
def test_a_malformed_return_names_its_header(value: str) -> None:
    with pytest.raises(InvalidIdentityError, match="expected seconds, such as 90") as caught:
        read(x_autellix_expected_return=value)
    assert caught.value.field == "X-Autellix-Expected-Return"
    assert len(str(caught.value)) < 200


DYNAMO_CHILD = {"x-dynamo-session-id": "run:coder", "x-dynamo-parent-session-id": "run"}
OPENCODE_CHILD = {"x-session-id": "ses_child", "x-parent-session-id": "ses_root"}
CLAUDE = {"x-claude-code-session-id": "session"}
CODEX = {"session-id": "root", "thread-id": "root"}


@pytest.mark.parametrize(
    ("headers", "program", "thread"),
    [
        ({"x-dynamo-session-id": "run"}, "run", "0"),
        (DYNAMO_CHILD, "run", "run:coder"),
        (OPENCODE_CHILD, "ses_root", "ses_child"),
        (CLAUDE, "session", "0"),
        ({**CLAUDE, "x-claude-code-agent-id": "a8"}, "session", "a8"),
        (CODEX, "root", "0"),
        ({**CODEX, "thread-id": "child"}, "root", "child"),
        # Our own thread header has the last word.
        ({**DYNAMO_CHILD, "x-autellix-thread-id": "7"}, "run", "7"),
        ({"x-autellix-program-id": "p", "x-claude-code-agent-id": "a8"}, "p", "a8"),
    ],
)
def test_a_sub_agent_is_a_thread_of_its_root(headers: dict[str, str], program: str, thread: str) -> None:
    assert Calls().where(headers) == (program, thread)


def test_a_parent_named_once_is_remembered_until_it_idles() -> None:
    calls = Calls(idle_s=600)
    calls.resolve(DYNAMO_CHILD)
    alone = {"x-dynamo-session-id": "run:coder"}
    assert calls.where(alone) == ("run", "run:coder")
    assert calls.resolve(alone, tenant="other").program == "other/run:coder"
    calls.now = 601.0
    calls.resolver.expire(calls.now)
    assert calls.where(alone) == ("run:coder", "0")


def test_a_sub_agents_end_is_not_its_programs() -> None:
    calls = Calls()
    final = {"x-dynamo-session-final": "true"}
    assert not calls.resolve({**DYNAMO_CHILD, **final}).is_final
    # The ended agent's link is gone.
    assert calls.where({"x-dynamo-session-id": "run:coder"}) == ("run:coder", "0")
    assert calls.resolve({"x-dynamo-session-id": "run", **final}).is_final
    assert calls.resolve({**DYNAMO_CHILD, "x-autellix-final": "true"}).is_final


RESPONSE = "resp_" + "0123456789abcdef" * 2
CHAT = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]
LONGER = [*CHAT, {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]


def test_an_unnamed_chat_is_recognised() -> None:
    calls = Calls()
    assert calls.resolve({}, messages=CHAT).source == "content-chain"
    joined = calls.resolve({}, messages=LONGER)
    assert (joined.program, joined.source) == ("call-1", "content-chain")
    assert not joined.is_anonymous
    assert calls.resolve({}, prompt="text").is_anonymous


def test_only_what_a_call_continues_identifies_its_program_without_a_name() -> None:
    for tenant in ("", "lab"):
        calls = Calls()
        for headers in ({"x-session-id": "s"}, {"x-autellix-program-id": "p"}, DYNAMO_CHILD):
            assert calls.resolve(headers, tenant, messages=CHAT).is_identified
        # A completion, and a chat that nothing known comes before.
        assert not calls.resolve({}, tenant, prompt="text").is_identified
        begun = [*CHAT[:2], {"role": "user", "content": "of nobody else"}]
        assert not calls.resolve({}, tenant, messages=begun).is_identified
        longer = [*begun, {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]
        assert calls.resolve({}, tenant, messages=longer).is_identified
        keep = calls.store.keep_answer(tenant, [RESPONSE], AnswerSource("program", "e"), 0.0)
        asyncio.run(keep)
        assert calls.resolve({}, tenant, input="go on", previous_response_id=RESPONSE).is_identified


def test_what_a_process_calls_outside_of_programs_is_not_identified_before_it_is_continued() -> None:
    calls, headers = Calls(), {"x-autellix-program-id": "process", "x-autellix-flags": "implicit"}
    question, tools = [{"role": "user", "content": "a"}], [{"type": "function", "function": {"name": "f"}}]

    loose = calls.resolve(headers, messages=question)
    assert (loose.program, loose.is_identified) == ("process", False)
    agent = calls.resolve(headers, messages=question, tools=tools)
    assert (agent.program, agent.is_identified) == (agent.call, False)
    source = AnswerSource("process", "e", loose.implicit)
    asyncio.run(calls.store.keep_answer("", [call_key(loose.call), RESPONSE], source, 0.0))
    joined = calls.resolve(headers, input="go on", previous_response_id=RESPONSE)
    assert (joined.program, joined.is_identified) == (loose.call, True)


def test_a_named_chat_is_not_matched() -> None:
    calls = Calls()
    calls.resolve({"x-session-id": "s"}, messages=CHAT)
    assert calls.resolve({}, messages=LONGER).program == "call-2"


def test_conflicts_and_malformed_values_are_counted() -> None:
    calls = Calls()
    calls.resolve({"x-autellix-program-id": "p", "x-session-id": "q"}, session_id=[])
    rendered = calls.metrics.render().decode()
    assert 'autellix_identity_conflicts_total{dropped="x-session-id",kept="program-header"} 1.0' in rendered
    assert 'autellix_identity_malformed_total{source="body-session-id"} 1.0' in rendered


def test_a_tenants_programs_have_its_name_however_they_are_found() -> None:
    calls = Calls()
    assert calls.resolve(DYNAMO_CHILD, tenant="lab").program == "lab/run"
    assert calls.resolve({}, tenant="lab", messages=CHAT).program == "lab/call-2"
    assert calls.resolve({}, tenant="lab", messages=LONGER).program == "lab/call-2"
    assert calls.resolve({}, tenant="other", messages=LONGER).program == "other/call-4"


def test_a_vendors_sub_agents_are_threads_of_its_program() -> None:
    calls = Calls()
    child = {"x-deepseek-harness-session-id": "child", "x-deepseek-harness-parent-session-id": "root"}
    assert calls.where({"x-deepseek-harness-session-id": "root"}) == ("root", "0")
    assert calls.where(child) == ("root", "child")
    assert calls.where({"x-deepseek-harness-session-id": "child"}) == ("root", "child")


def test_the_root_of_an_agentic_context_is_the_program_of_all_its_agents() -> None:
    calls = Calls()
    context = {"program_id": "t:critic", "parent_program_id": "t:researcher", "root_program_id": "t:lead"}
    identity = calls.resolve({}, vllm_xargs={"agentic_context": context})
    assert (identity.program, identity.thread) == ("t:lead", "t:critic")
    lead = {"program_id": "t:lead", "root_program_id": "t:lead"}
    identity = calls.resolve({}, vllm_xargs={"agentic_context": lead})
    assert (identity.program, identity.thread) == ("t:lead", "0")


def test_a_tenants_conversation_is_its_own() -> None:
    calls = Calls()
    mine = calls.resolve({}, "lab", conversation="conv_1")
    assert mine.program == calls.resolve({}, "lab", conversation={"id": "conv_1"}).program == "lab/conv_1"
    assert calls.resolve({}, "other", conversation="conv_1").program == "other/conv_1"


def test_headers_that_name_programs_by_the_rule_are_counted_by_few_names() -> None:
    calls = Calls()
    for number in range(100):
        for _ in range(2):
            calls.resolve({f"x-vendor{number}-session-id": "s"})
    lines = calls.metrics.render().decode().splitlines()
    series = [line for line in lines if line.startswith("autellix_identity_vendor_sessions_total{")]
    assert len(series) == MAX_VENDOR_HEADERS + 1
    assert 'autellix_identity_vendor_sessions_total{header="x-vendor0-session-id"} 2.0' in series


IMPLICIT = {"X-Autellix-Program-ID": "process", "X-Autellix-Flags": "implicit"}
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def implicit(calls: Calls, call_id: str, *parents: str, tenant: str = "", **body: Any) -> Identity:
    named = {**IMPLICIT, "X-Autellix-Call-ID": call_id, "X-Autellix-Parent-IDs": ",".join(parents) or "-"}
    body = {"messages": CHAT[:1], "tools": TOOLS} | body
    return calls.resolve({name.lower(): value for name, value in named.items()}, tenant, **body)


def settle(calls: Calls, identity: Identity, *ids: str, tenant: str = "", is_open: bool = False) -> None:
    """Keep what the registry keeps of a settled implicit call."""
    assert identity.implicit is not None
    source = AnswerSource(identity.program, "e", replace(identity.implicit, calls_tools=is_open))
    asyncio.run(calls.store.keep_answer(tenant, [*ids, call_key(identity.call)], source, calls.now))


RESULT = {"role": "tool", "tool_call_id": "call_a1b2c3d4e5", "content": "x"}


def test_an_implicit_call_joins_nothing_of_another_tenant() -> None:
    """Neither by ids of answers, nor by calls that it says it depends on, nor by a transcript."""
    calls = Calls()
    first = implicit(calls, "c1", tenant="a")
    assert (first.program, first.source, first.flags) == ("a/c1", "implicit", ())
    settle(calls, first, "call_a1b2c3d4e5", tenant="a", is_open=True)
    mine = implicit(calls, "c2", "c1", tenant="a", messages=[*CHAT, RESULT])
    assert (mine.program, mine.parents, mine.source) == ("a/c1", ("c1",), "answer-id")
    settle(calls, mine, tenant="a")
    theirs = implicit(calls, "c2", "c1", tenant="b", messages=[*CHAT, RESULT])
    assert (theirs.program, theirs.parents) == ("b/c2", ())
    nested = implicit(calls, "c3", "c1", tenant="b")
    assert nested.program == "b/c3"


def test_a_transcript_that_others_have_sent_word_by_word_joins_only_what_a_call_depends_on() -> None:
    calls = Calls()
    for number in (1, 2):
        settle(calls, implicit(calls, f"first-{number}"))
    for number in (2, 1):
        second = implicit(calls, f"second-{number}", f"first-{number}", messages=CHAT)
        assert (second.program, second.source) == (f"first-{number}", "content-chain")
        assert second.parents == (f"first-{number}",)
        settle(calls, second)
    third = implicit(calls, "third-1", "second-1", messages=[*CHAT, *CHAT[1:]])
    assert third.program == "first-1"


def test_a_conversation_that_another_process_goes_on_with_is_recognised_by_its_transcript() -> None:
    """As without the client: it knows no call before its own."""
    calls = Calls()
    settle(calls, implicit(calls, "first"))
    settle(calls, implicit(calls, "second", "first", messages=CHAT))
    third = implicit(calls, "third", messages=[*CHAT, *CHAT[1:]])
    assert (third.program, third.source, third.parents) == ("first", "content-chain", ())


def test_where_identity_is_strict_an_implicit_call_joins_its_owner_s_only() -> None:
    calls = Calls()
    mine = {"x-autellix-program-id": "process", "x-autellix-flags": "implicit", "x-autellix-parent-ids": "c1"}

    def placed(owner: str) -> str:
        fields = parse_body(json.dumps({"messages": [*CHAT, RESULT]}).encode(), CHAT_COMPLETIONS).fields
        said = replace(read_identity(mine, fields, "c2"), owner=owner)
        return asyncio.run(calls.resolver.resolve(said, fields, "")).program

    first = replace(implicit(calls, "c1"), owner="one")
    assert first.implicit is not None
    settle(
        calls, replace(first, implicit=replace(first.implicit, owner="one")), "call_a1b2c3d4e5", is_open=True
    )
    assert (placed("one"), placed("other")) == ("c1", "process")
