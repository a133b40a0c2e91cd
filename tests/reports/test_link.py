from __future__ import annotations

import pytest

from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.link import (
    PROTOCOL,
    EngineFacts,
    OtherProtocolError,
    address_of_rank,
    link_key,
    report_topic,
)

FACTS = EngineFacts(
    engine="e", version="1", vllm="0.32.0", policy="boost", has_admission=True, slots=4, kv_tokens=None
)


def test_facts_return_as_they_went() -> None:
    assert EngineFacts.from_bytes(FACTS.to_bytes()) == FACTS


def test_a_later_version_may_say_more() -> None:
    assert EngineFacts.from_bytes(FACTS.to_bytes()[:-1] + b',"mood":"good"}') == FACTS


@pytest.mark.parametrize(("protocol", "side"), [(PROTOCOL - 1, "the engine"), (PROTOCOL + 1, "this gateway")])
def test_another_protocol_is_named_although_nothing_else_is_understood(protocol: int, side: str) -> None:
    content = f'{{"protocol":{protocol},"version":"9.0","engine":["of",2]}}'.encode()
    expected = f"version 9.0 speaks protocol {protocol} of reports, not {PROTOCOL}: upgrade {side}"
    with pytest.raises(OtherProtocolError, match=expected):
        EngineFacts.from_bytes(content)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"[" * 3000, b'{"protocol":2}', b'{"engine":"e"}'])
def test_garbage_is_refused(content: bytes) -> None:
    with pytest.raises(ReportError):
        EngineFacts.from_bytes(content)


def test_gateways_have_topics_of_their_own() -> None:
    assert report_topic("g1") == b"report g1"


def test_each_rank_has_an_address() -> None:
    assert address_of_rank("tcp://0.0.0.0:9000", 0) == "tcp://0.0.0.0:9000"
    assert address_of_rank("tcp://[::]:9000", 3) == "tcp://[::]:9003"
    assert address_of_rank("ipc:///run/a", 0) == "ipc:///run/a"
    assert address_of_rank("ipc:///run/a", 3) == "ipc:///run/a.3"


def test_a_key_follows_from_the_secret_alone() -> None:
    assert link_key("a secret of mine") == link_key("a secret of mine") != link_key("a secret of yours")
    assert len(link_key("a secret of mine")) == 32
