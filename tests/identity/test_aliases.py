"""Every name of the table as its client sends it; precedence, conflicts, and what cannot be used."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.identity.recorded import CLAUDE_NEW_USER, RECORDED, UUID, Sent

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.identity.aliases import (
    ALIASES,
    PROGRAM_SOURCES,
    AliasField,
    ResolvedAliases,
    Tier,
    resolve_aliases,
    usable_id,
)
from autellix_wire.ids import InvalidIdError


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
        baggage = f"session.id={alias.source}"
        value = {
            "claude-code-user-id": CLAUDE_NEW_USER,
            "prompt-cache-key": UUID,
            "baggage": baggage,
            "meta-baggage": baggage,
        }.get(alias.source, alias.source)
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
