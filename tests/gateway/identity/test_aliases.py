"""Every name of the table as its client sends it; precedence, conflicts, and what cannot be used."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.gateway.identity.aliases import (
    ALIASES,
    PROGRAM_SOURCES,
    AliasField,
    ResolvedAliases,
    Tier,
    resolve_aliases,
    usable_id,
)
from autellix_wire.ids import InvalidIdError

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}
UUID = "01992a8e-7f3c-7b61-9d52-3c1a0de5f7aa"
CLAUDE_SESSION = "e96634a3-fa28-4083-b354-55542e2dca01"
CLAUDE_DEVICE = "4f0c2b" * 10 + "4f0c"
CLAUDE_OLD_USER = f"user_{CLAUDE_DEVICE}_account__session_{CLAUDE_SESSION}"
CLAUDE_NEW_USER = json.dumps({"device_id": CLAUDE_DEVICE, "account_uuid": "", "session_id": CLAUDE_SESSION})
OPENCODE_SESSION = "ses_6b2f41c8dffeRqK2tXwYp0VnLm"


@dataclass(frozen=True)
class Sent:
    """A request as its client sends it, and what it says."""

    source: str
    value: str
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)


RECORDED = [
    Sent("program-header", "run-1", {"X-Autellix-Program-ID": "run-1"}),
    Sent("session-header", "s-1", {"X-Autellix-Session-ID": "s-1"}),
    Sent("thread-header", "2", {"X-Autellix-Thread-ID": "2"}),
    Sent("final-header", "final", {"X-Autellix-Final": "true"}),
    Sent(
        "agentic-program",
        "task-a:lead",
        body={"vllm_xargs": {"agentic_context": {"program_id": "task-a:lead"}}},
    ),
    Sent(
        "agentic-program",
        "task-a:lead",
        body={"vllm_xargs": {"agentic_context": '{"program_id": "task-a:lead", "task_id": null}'}},
    ),
    Sent(
        "agentic-task",
        "task-a",
        body={"vllm_xargs": {"agentic_context": {"task_id": "task-a", "agent_id": "lead"}}},
    ),
    Sent(
        "agentic-root",
        "task-a:lead",
        body={
            "vllm_xargs": {
                "agentic_context": {
                    "program_id": "task-a:critic",
                    "parent_program_id": "task-a:researcher",
                    "root_program_id": "task-a:lead",
                }
            }
        },
    ),
    Sent(
        "agentic-parent",
        "task-a:lead",
        body={
            "vllm_xargs": {
                "agentic_context": {
                    "program_id": "task-a:critic",
                    "parent_program_id": "task-a:lead",
                    "step_id": 7,
                }
            }
        },
    ),
    Sent("agent-hint", "root", body={"agent_hint": {"session_id": "root", "blocks_parent": False}}),
    Sent(
        "agent-hint-parent", "root", body={"agent_hint": {"session_id": "child", "parent_session_id": "root"}}
    ),
    Sent(
        "dynamo-session", "research-run-42:researcher", {"x-dynamo-session-id": "research-run-42:researcher"}
    ),
    Sent(
        "dynamo-parent",
        "research-run-42",
        {"x-dynamo-session-id": "research-run-42:r", "x-dynamo-parent-session-id": "research-run-42"},
    ),
    Sent("dynamo-final", "final", {"x-dynamo-session-id": "run", "x-dynamo-session-final": "true"}),
    Sent("dynamo-trajectory", "run-42:r", {"x-dynamo-trajectory-id": "run-42:r"}),
    Sent(
        "nvext-session", "s-1", body={"nvext": {"session_control": {"session_id": "s-1", "action": "open"}}}
    ),
    Sent("nvext-context", "s-1", body={"nvext": {"agent_context": {"session_id": "s-1"}}}),
    Sent("body-program-id", "swe-17", body={"program_id": "swe-17"}),
    Sent("extra-body-program-id", "swe-17", body={"extra_body": {"program_id": "swe-17"}}),
    Sent(
        "body-job-id", "django__django-11099", body={"job_id": "django__django-11099", "is_last_step": False}
    ),
    Sent("body-last-step", "final", body={"job_id": "django__django-11099", "is_last_step": True}),
    Sent("x-session-id", "chat-9", {"X-Session-ID": "chat-9"}),
    Sent(
        "x-parent-session-id",
        OPENCODE_SESSION,
        {
            "x-session-affinity": "ses_child",
            "X-Session-Id": "ses_child",
            "x-parent-session-id": OPENCODE_SESSION,
            "User-Agent": "opencode/1.3.0",
        },
    ),
    Sent("body-session-id", "chat-9", body={"session_id": "chat-9"}),
    Sent("xargs-session-id", "chat-9", body={"vllm_xargs": {"session_id": "chat-9"}}),
    Sent("sglang-session", "s-1", body={"session_params": {"session_id": "s-1"}}),
    Sent("sglang-session-id", "s-1", body={"session_params": {"id": "s-1", "rid": None}}),
    Sent("claude-code-session", CLAUDE_SESSION, {"X-Claude-Code-Session-Id": CLAUDE_SESSION}),
    Sent("claude-code-user-id", CLAUDE_SESSION, body={"metadata": {"user_id": CLAUDE_OLD_USER}}),
    Sent("claude-code-user-id", CLAUDE_SESSION, body={"metadata": {"user_id": CLAUDE_NEW_USER}}),
    Sent("claude-code-user-id", UUID, body={"metadata": {"user_id": f"session_{UUID}"}}),
    Sent(
        "claude-code-agent",
        "a8f3c21",
        {
            "X-Claude-Code-Session-Id": CLAUDE_SESSION,
            "x-claude-code-agent-id": "a8f3c21",
            "x-claude-code-parent-agent-id": "a11e902",
        },
    ),
    Sent("codex-session", UUID, {"session-id": UUID, "thread-id": UUID, "x-client-request-id": UUID}),
    Sent("codex-thread", "0199-child", {"session-id": UUID, "thread-id": "0199-child"}),
    Sent("body-codex-session", UUID, body={"client_metadata": {"session_id": UUID, "thread_id": UUID}}),
    Sent("body-codex-thread", "0199", body={"client_metadata": {"session_id": UUID, "thread_id": "0199"}}),
    Sent(
        "opencode-session",
        OPENCODE_SESSION,
        {
            "x-opencode-project": "5a1c",
            "x-opencode-session": OPENCODE_SESSION,
            "x-opencode-request": "msg_1",
            "x-opencode-client": "cli",
        },
    ),
    Sent("session-affinity", OPENCODE_SESSION, {"x-session-affinity": OPENCODE_SESSION}),
    Sent("litellm-session", "agent-run-abc123", {"x-litellm-session-id": "agent-run-abc123"}),
    Sent("litellm-trace", "agent-run-abc123", {"x-litellm-trace-id": "agent-run-abc123"}),
    Sent("body-litellm-session-id", "agent-run-abc123", body={"litellm_session_id": "agent-run-abc123"}),
    Sent("metadata-session-id", "agent-run-abc123", body={"metadata": {"session_id": "agent-run-abc123"}}),
    Sent("metadata-sessionid", UUID, body={"metadata": {"sessionId": UUID, "promptId": "p"}}),
    Sent("conversation", "conv_689667905b048191", body={"conversation": "conv_689667905b048191"}),
    Sent("conversation-id", "conv_689667905b048191", body={"conversation": {"id": "conv_689667905b048191"}}),
    Sent("llm-d-fairness", "agent-a", {"x-llm-d-inference-fairness-id": "agent-a"}),
    Sent("gateway-fairness", "agent-a", {"x-gateway-inference-fairness-id": "agent-a"}),
    Sent("smg-routing-key", "agent-a", {"X-SMG-Routing-Key": "agent-a"}),
    Sent("prompt-cache-key", f"session_{UUID}", body={"prompt_cache_key": f"session_{UUID}"}),
    Sent("prompt-cache-key", f"agents-sdk:run:{UUID}", body={"prompt_cache_key": f"agents-sdk:run:{UUID}"}),
    Sent("prompt-cache-key", UUID, body={"prompt_cache_key": UUID}),
    Sent("prompt-cache-key", OPENCODE_SESSION, body={"prompt_cache_key": OPENCODE_SESSION}),
]


def read(headers: dict[str, str] | None = None, body: dict[str, Any] | None = None) -> ResolvedAliases:
    lowered = {name.lower(): value for name, value in (headers or {}).items()}
    return resolve_aliases(lowered, parse_body(json.dumps(body or {}).encode(), CHAT_COMPLETIONS).fields)


def found(resolved: ResolvedAliases, field: AliasField) -> str | None:
    """Return what a request says of one thing, as text."""
    return {
        AliasField.PROGRAM: resolved.program,
        AliasField.PARENT: resolved.parent,
        AliasField.THREAD: resolved.thread,
        AliasField.AGENT: resolved.agent,
        AliasField.FINAL: "final" if resolved.final else None,
    }[field]


@pytest.mark.parametrize("sent", RECORDED, ids=lambda sent: sent.source)
def test_every_alias_is_read_as_its_client_sends_it(sent: Sent) -> None:
    alias = next(alias for alias in ALIASES if alias.source == sent.source)
    resolved = read(sent.headers, sent.body)
    assert found(resolved, alias.field) == sent.value
    if alias.field is AliasField.PROGRAM:
        assert resolved.named_by is alias
    if alias.field is AliasField.FINAL:
        assert resolved.final is alias
    assert resolved.malformed == ()
    assert resolved.conflicts == ()


def test_every_row_has_a_recorded_request() -> None:
    assert {sent.source for sent in RECORDED} == {alias.source for alias in ALIASES}


def test_the_sources_are_a_fixed_set_without_doubles_in_the_order_of_their_tiers() -> None:
    assert len(set(PROGRAM_SOURCES)) == len(PROGRAM_SOURCES)
    assert len({(alias.header_key, alias.path) for alias in ALIASES}) == len(ALIASES)
    tiers = [alias.tier for alias in ALIASES]
    assert tiers == sorted(tiers)


@pytest.mark.parametrize("place", range(sum(alias.field is AliasField.PROGRAM for alias in ALIASES)))
def test_a_row_wins_over_all_below_it(place: int) -> None:
    """Each row is sent with all rows below it, and an id of its own in each."""
    rows = [alias for alias in ALIASES if alias.field is AliasField.PROGRAM][place:]
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    for alias in rows:
        value = {"claude-code-user-id": CLAUDE_NEW_USER, "prompt-cache-key": UUID}.get(
            alias.source, alias.source
        )
        if alias.header:
            headers[alias.header] = value
        else:
            if alias.path[0] in body and not isinstance(body[alias.path[0]], dict):
                continue  # One conversation has one of its two forms.
            inner = body
            for name in alias.path[:-1]:
                inner = inner.setdefault(name, {})
            inner[alias.path[-1]] = value
    resolved = read(headers, body)
    assert resolved.named_by is rows[0]


@pytest.mark.parametrize(
    ("headers", "body", "conflicts"),
    [
        ({"X-Autellix-Program-ID": "p", "X-Session-ID": "q"}, {}, (("program-header", "x-session-id"),)),
        ({"x-dynamo-session-id": "a"}, {"job_id": "b"}, (("dynamo-session", "body-job-id"),)),
        ({"X-Session-ID": "a"}, {"session_id": "b"}, (("x-session-id", "body-session-id"),)),
        # The same program by two names is no conflict, nor are two ids of one client's.
        ({"X-Session-ID": "a"}, {"session_id": "a"}, ()),
        ({"X-Autellix-Program-ID": "p", "X-Autellix-Session-ID": "s"}, {}, ()),
        ({"x-litellm-session-id": "s", "x-litellm-trace-id": "t"}, {}, ()),
        # A queue's or a cache's id is not meant to be the program's.
        ({"X-Session-ID": "a", "x-llm-d-inference-fairness-id": "tenant-a"}, {}, ()),
        ({"session-id": "a"}, {"prompt_cache_key": UUID}, ()),
    ],
)
def test_different_programs_by_two_clients_are_a_conflict(
    headers: dict[str, str], body: dict[str, Any], conflicts: tuple[tuple[str, str], ...]
) -> None:
    assert read(headers, body).conflicts == conflicts


@pytest.mark.parametrize(
    "header",
    [
        "agent-session-id",
        "goose-session-id",
        "X-DeepSeek-Harness-Session-ID",
        "session_id",
        "conversation_id",
        "X-Conversation-Id",
        "X-Task-ID",
        "x-amp-thread-id",
        "x-bf-session-id",
        "x-aibrix-session-key",
        "X-Olla-Session-ID",
        "Helicone-Session-Id",
    ],
)
def test_a_header_spelled_as_a_sessions_id_names_a_program(header: str) -> None:
    resolved = read({header: "s-17", "user-agent": "agent/1.0"})
    assert resolved.program == "s-17"
    assert resolved.named_by is not None
    assert (resolved.named_by.source, resolved.named_by.header) == ("vendor-session", header.lower())


@pytest.mark.parametrize(
    "headers",
    [
        {"x-client-request-id": "1"},
        {"x-correlation-id": "1"},
        {"x-request-id": "1"},
        {"x-obsession-id": "1"},
        {"x-session": "1"},
        {"x-session-ids": "1"},
        {"x-deepseek-harness-parent-session-id": "1"},
        {"x-codex-parent-thread-id": "1"},
        {"x-claude-code-parent-agent-id": "1"},
        {"cookie": "session-id=1"},
        # Counts the sessions of a user's day.
        {"agent-session-id": "20260122_3"},
    ],
)
def test_other_headers_name_none(headers: dict[str, str]) -> None:
    resolved = read(headers)
    assert (resolved.program, resolved.malformed) == (None, ())


def test_the_rule_of_vendors_ranks_behind_all_other_clients_and_in_one_order() -> None:
    headers = {"x-b-session-id": "b", "x-a-session-id": "a"}
    assert read(headers).program == read(dict(reversed(headers.items()))).program == "a"
    resolved = read(headers, {"metadata": {"session_id": "s"}})
    assert (resolved.program, resolved.conflicts) == ("s", ())
    assert read({**headers, "x-llm-d-inference-fairness-id": "tenant"}).program == "a"
    assert read({"x-a-session-id": " "}).malformed == ("vendor-session",)


def test_a_vendors_parent_counts_beside_its_own_session() -> None:
    headers = {"x-a-session-id": "child", "x-a-parent-session-id": "root"}
    assert read(headers).parent == "root"
    assert read({"x-b-session-id": "child", "x-a-parent-session-id": "root"}).parent is None
    assert read({**headers, "x-session-id": "s"}).parent is None


def test_a_parent_counts_only_beside_a_program_of_its_own_client() -> None:
    headers = {"X-Autellix-Program-ID": "p", "X-Session-ID": "child", "x-parent-session-id": "root"}
    assert read(headers).parent is None
    assert read({"x-dynamo-parent-session-id": "root"}).parent is None


@pytest.mark.parametrize("value", ["", " ", "é", "x" * 257])
@pytest.mark.parametrize(
    "name", [a.header for a in ALIASES if a.tier is Tier.OWN and a.field is not AliasField.FINAL]
)
def test_a_malformed_id_of_ours_names_its_header(name: str, value: str) -> None:
    with pytest.raises(InvalidIdError) as caught:
        read({name: value})
    assert caught.value.field == name


def test_a_malformed_end_of_ours_names_its_header() -> None:
    with pytest.raises(InvalidIdError) as caught:
        read({"X-Autellix-Final": "perhaps"})
    assert caught.value.field == "X-Autellix-Final"


@pytest.mark.parametrize(
    ("headers", "body", "malformed"),
    [
        ({"X-Session-ID": " "}, {}, ("x-session-id",)),
        ({}, {"session_id": {"id": 1}}, ("body-session-id",)),
        ({}, {"job_id": [1]}, ("body-job-id",)),
        ({}, {"program_id": True}, ("body-program-id",)),
        ({}, {"program_id": 1.5}, ("body-program-id",)),
        ({}, {"is_last_step": "soon"}, ("body-last-step",)),
        ({"x-dynamo-session-final": "maybe"}, {}, ("dynamo-final",)),
        ({}, {"metadata": {"session_id": ""}}, ("metadata-session-id",)),
        # Nothing that means to be an id
        ({}, {"session_id": None, "metadata": None, "job_id": None, "is_last_step": None}, ()),
        ({}, {"metadata": "text", "extra_body": [1]}, ()),
        ({}, {"metadata": {"user_id": "jane"}}, ()),
        ({}, {"metadata": {"user_id": "{not json"}}, ()),
        ({}, {"metadata": {"user_id": "user_x_account__session_"}}, ()),
        ({}, {"metadata": {"user_id": "my_obsession_1"}}, ()),
        ({}, {"prompt_cache_key": "support-bot"}, ()),
        ({}, {"prompt_cache_key": "20260122_3"}, ()),
        ({}, {"conversation": {}}, ()),
        ({}, {"conversation": ["a"]}, ("conversation",)),
        ({}, {"vllm_xargs": {"agentic_context": "not json"}, "agent_hint": "text"}, ()),
        ({}, {"user": "jane", "safety_identifier": "jane"}, ()),
    ],
)
def test_an_invalid_alias_is_ignored_and_counted(
    headers: dict[str, str], body: dict[str, Any], malformed: tuple[str, ...]
) -> None:
    resolved = read(headers, body)
    assert resolved.malformed == malformed
    assert resolved.program is None
    assert resolved.final is None


def test_an_invalid_alias_does_not_hide_the_next_one() -> None:
    assert read({"X-Session-ID": ""}, {"session_id": "s"}).program == "s"


def test_a_number_serves_as_a_job_id() -> None:
    assert read(body={"job_id": 17}).program == "17"


def test_a_long_or_non_ascii_id_has_one_hash_in_headers_and_bodies() -> None:
    in_body = read(body={"session_id": "séance"}).program
    # A server reads the bytes of a header as Latin-1.
    in_header = read({"X-Session-ID": "séance".encode().decode("latin-1")}).program
    assert in_body is not None
    assert in_body == in_header
    assert in_body.startswith("hashed-")
    assert usable_id("x" * 256) == "x" * 256
    assert usable_id("x" * 257) != usable_id("x" * 258)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
HEADER_TEXT = st.text(st.characters(max_codepoint=255), max_size=300)


@given(
    st.dictionaries(
        st.sampled_from([a.header_key for a in ALIASES if a.header and a.tier is not Tier.OWN]), HEADER_TEXT
    ),
    st.dictionaries(st.sampled_from([a.path[0] for a in ALIASES if a.path]), JSON),
)
def test_no_foreign_value_breaks_a_request(headers: dict[str, str], body: dict[str, Any]) -> None:
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode(msgspec.json.encode(body))
    resolved = resolve_aliases(headers, fields)
    assert {kept for kept, _ in resolved.conflicts} <= set(PROGRAM_SOURCES)
    assert set(resolved.malformed) <= {alias.source for alias in ALIASES}


async def test_two_calls_of_a_client_are_one_program_with_its_source(serve: Any) -> None:
    async with serve() as rig:
        for sent in RECORDED:
            if sent.source not in PROGRAM_SOURCES:
                continue
            rig.engine.requests.clear()
            for _ in range(2):
                body = {**HELLO, **sent.body}
                async with rig.client.post(rig.url + CHAT, json=body, headers=sent.headers) as response:
                    assert response.headers["X-Autellix-Identity-Source"] == sent.source
                    assert response.headers["X-Autellix-Program-ID"] == sent.value
            [first, second] = rig.engine.calls
            assert first.xargs["autellix_program"] == second.xargs["autellix_program"] == sent.value
            assert second.xargs["autellix_service_s"] > 0


async def test_unnamed_chats_that_extend_each_other_are_one_program(serve: Any) -> None:
    async with serve() as rig:
        messages = [*HELLO["messages"]]
        told = []
        for _ in range(4):
            async with rig.client.post(rig.url + CHAT, json={**HELLO, "messages": messages}) as response:
                message = (await response.json())["choices"][0]["message"]
                told.append(
                    (
                        response.headers["X-Autellix-Identity-Source"],
                        response.headers["X-Autellix-Program-ID"],
                    )
                )
            messages += [
                {"role": "assistant", "content": message["content"]},
                {"role": "user", "content": "more"},
            ]
        assert [source for source, _ in told] == ["request", *["content-chain"] * 3]
        assert len({program for _, program in told[1:]}) == 1
        assert told[0][1] != told[1][1]
