from __future__ import annotations

import pytest

from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.link import PROTOCOL, EngineFacts, GatewayHello, OtherProtocolError, link_key

FACTS = EngineFacts(
    engine="e", version="1", vllm="0.32.0", policy="boost", has_admission=True, slots=4, kv_tokens=None
)


def test_messages_return_as_they_went() -> None:
    hello = GatewayHello(gateway="g", version="1")
    assert GatewayHello.from_bytes(hello.to_bytes()) == hello
    assert EngineFacts.from_bytes(FACTS.to_bytes()) == FACTS


def test_a_later_version_may_say_more() -> None:
    assert GatewayHello.from_bytes(b'{"gateway":"g","version":"2","mood":"good"}').gateway == "g"


def test_an_earlier_release_of_this_protocol_is_understood() -> None:
    """Its messages lack what came later, and the protocol's own field."""
    old = b'{"engine":"e","version":"1","vllm":"0.32.0","policy":"boost","has_admission":true,"slots":4'
    old += b',"kv_tokens":null}'
    assert EngineFacts.from_bytes(old) == FACTS


def test_another_protocol_is_named_although_nothing_else_is_understood() -> None:
    content = f'{{"protocol":{PROTOCOL + 1},"version":"9.0","gateway":["of",2]}}'.encode()
    expected = f"version 9.0 speaks protocol {PROTOCOL + 1} of reports, not {PROTOCOL}"
    with pytest.raises(OtherProtocolError, match=expected):
        GatewayHello.from_bytes(content)
    with pytest.raises(OtherProtocolError, match=expected):
        EngineFacts.from_bytes(content)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"[" * 3000, b'{"gateway":1}', b'{"gateway":"","version":""}']
)
def test_garbage_is_refused(content: bytes) -> None:
    with pytest.raises(ReportError):
        GatewayHello.from_bytes(content)
    with pytest.raises(ReportError):
        EngineFacts.from_bytes(content)


def test_a_gateways_id_is_short() -> None:
    with pytest.raises(ReportError, match="1 to 64 characters, not 65"):
        GatewayHello.from_bytes(GatewayHello(gateway="g" * 65, version="1").to_bytes())


def test_a_key_follows_from_the_secret_alone() -> None:
    assert link_key("a secret of mine") == link_key("a secret of mine") != link_key("a secret of yours")
    assert len(link_key("a secret of mine")) == 32
