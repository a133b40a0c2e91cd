"""Hints in the words of other tools: values of any kind, and what they cost a call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from autellix_backend.core.priority import Priority
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.identity.hint_dialects import LONGEST_S
from autellix_backend.identity.hints import NOTHING_STATED, read_hints

INTERACTIVE, DEFAULT, BATCH = Priority


def stated(header: str | None = None, **fields: Any) -> Priority:
    headers = {} if header is None else {"x-autellix-priority": header}
    body = {name: msgspec.Raw(msgspec.json.encode(fields[name])) for name in fields}
    return read_hints(headers, body).record.priority


def test_a_call_without_any_has_the_default_one() -> None:
    assert stated() is DEFAULT


@pytest.mark.parametrize("value", ["batch", " Batch ", "BATCH"])
def test_the_header_states_it(value: str) -> None:
    assert stated(value) is BATCH


@pytest.mark.parametrize("value", ["", "urgent", "high", "-1", "nan", "batch, batch", "x" * 10_000, "\xe9"])
def test_an_unknown_value_names_its_header_and_those_expected(value: str) -> None:
    with pytest.raises(InvalidIdentityError) as caught:
        stated(value)
    assert caught.value.field == "X-Autellix-Priority"
    assert "expected one of interactive, default, batch" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("tier", "priority"),
    [("priority", INTERACTIVE), ("flex", BATCH), ("auto", DEFAULT), ("default", DEFAULT), ("scale", DEFAULT)],
)
def test_the_service_tier_of_openai_states_it(tier: str, priority: Priority) -> None:
    assert stated(service_tier=tier) is priority


@pytest.mark.parametrize(
    ("rank", "priority"), [(-1, INTERACTIVE), (-(10**15), INTERACTIVE), (0, DEFAULT), (7, BATCH)]
)
def test_the_priority_of_vllm_states_it_by_its_sign(rank: int, priority: Priority) -> None:
    assert stated(priority=rank) is priority


@pytest.mark.parametrize("value", ["batch", 1.5, True, None, [], {}, [1], "x" * 10_000])
def test_values_that_mean_nothing_here_fail_no_call(value: Any) -> None:
    assert stated(service_tier=value) is DEFAULT
    assert stated(priority=value) is DEFAULT


def test_numbers_that_nobody_can_read_fail_no_call() -> None:
    for text in (b"1e999", b"-" + b"9" * 5000, b"NaN", b"{"):
        assert read_hints({}, {"priority": msgspec.Raw(text)}).record.priority in (DEFAULT, INTERACTIVE)


def test_the_header_goes_before_the_tier_and_that_before_the_number() -> None:
    assert stated("default", service_tier="flex", priority=-1) is DEFAULT
    assert stated(service_tier="flex", priority=-1) is BATCH


JUNK = [b"[]", b"{}", b'"x"', b"1.5"]
JUNK += [b"true", b"-1e400", b"NaN", b"{", b'"\\ud800"', b"[" * 5000, b'"' + b"9" * 70_000]
HOLDERS = ["vllm_xargs", "agent_hint", "nvext"]


@pytest.mark.parametrize("name", [*HOLDERS, "service_tier", "priority"])
@pytest.mark.parametrize("text", JUNK)
def test_any_value_makes_a_record_or_names_its_place(name: str, text: bytes) -> None:
    inner = {"vllm_xargs": "agentic_context", "agent_hint": "cache_control", "nvext": "agent_hints"}.get(name)
    for raw in (text, b'{"%s":%s}' % ((inner or "x").encode(), text)):
        try:
            record = read_hints({}, {name: msgspec.Raw(raw)}).record
        except InvalidIdentityError as error:
            assert error.field.startswith(name)
            assert len(str(error)) < 300
        else:
            assert record.retain_s is None


def test_times_are_bounded() -> None:
    body = {"vllm_xargs": msgspec.Raw(b'{"agentic_context":{"kv_retention_ttl":1e300}}')}
    assert read_hints({}, body).record.retain_s == LONGEST_S


def test_a_request_without_hints_makes_no_record() -> None:
    assert read_hints({"user-agent": "x"}, {"model": msgspec.Raw(b'"m"')}) is NOTHING_STATED
    assert read_hints({}, {"nvext": msgspec.Raw(b"{}"), "vllm_xargs": msgspec.Raw(b"null")}) is NOTHING_STATED
