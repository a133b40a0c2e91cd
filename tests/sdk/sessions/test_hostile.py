"""A hostile host that marks its answers as a backend's: what it can learn, hold, slow or break."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.sdk.in_process import HTTPX, Network

import autellix
from autellix._receipts import keep, keep_comment, kept
from autellix._sessions import backends as origins

if TYPE_CHECKING:
    from collections.abc import Callable


MESSAGES: Any = [{"role": "user", "content": "x"}]
MARK = {"X-Autellix-Version": "1"}


def names(headers: Any) -> list[str]:
    return [name for name in headers if name.startswith("x-autellix")]


class Internet(Network):
    """Every host in the process, by a function of the request."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        super().__init__("http://unused.example", answer=answer)

    @property
    def hosts(self) -> list[tuple[str, list[str]]]:
        """Each request's host, and the headers of ours that it has seen."""
        return [(request.url.host, names(request.headers)) for request in self.requests]

    def ask(self, url: str, count: int = 1) -> None:
        client = self.client_at(url)
        for _ in range(count):
            client.chat.completions.create(model="m", messages=MESSAGES)


def answered(_request: Any = None, **headers: str) -> Any:
    return HTTPX.Response(200, json={"choices": []}, headers={**MARK, **headers})


@pytest.mark.parametrize("target", ["https://provider.example/v1/x", "http://other.example/v1/x"])
def test_redirect_to_another_host_carries_no_identity(sdk: None, target: str) -> None:
    def answer(request: Any) -> Any:
        if request.url.host == "gateway.example":
            return HTTPX.Response(307, headers={**MARK, "Location": target})
        return HTTPX.Response(200, json={"choices": []})

    internet = Internet(answer)
    autellix.configure("http://gateway.example/v1")
    internet.ask("http://gateway.example/v1")
    (first, ours), (second, theirs) = internet.hosts
    assert (first, bool(ours)) == ("gateway.example", True)
    assert (second, theirs) == (target.split("/")[2], [])


@pytest.mark.parametrize(("path", "is_kept"), [("/v1/x", True), ("/other/v1/x", False)])
def test_redirect_within_the_backend_keeps_the_identity(sdk: None, path: str, is_kept: bool) -> None:
    def answer(request: Any) -> Any:
        if request.url.scheme == "http":
            return HTTPX.Response(307, headers={"Location": f"https://gateway.example{path}"})
        return answered()

    internet = Internet(answer)
    autellix.configure("http://gateway.example/v1")
    internet.ask("http://gateway.example/v1")
    (_, first), (_, second) = internet.hosts
    assert second == (first if is_kept else [])


def test_redirect_discovers_nothing(sdk: None) -> None:
    """The host that redirects would choose the path at which the other one is asked for a session."""

    def answer(request: Any) -> Any:
        if request.url.host == "hostile.example":
            return HTTPX.Response(307, headers={"Location": "http://gateway.example/trap/v1/x"})
        return answered()

    internet = Internet(answer)
    internet.ask("http://hostile.example/v1", count=2)
    assert all(not headers for _, headers in internet.hosts)
    assert origins.backends.known() == []


def test_hosts_with_the_mark_are_bounded(
    sdk: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(origins.backends, "_has_warned", False)
    internet = Internet(answered)
    for number in range(origins.MAX_DISCOVERED + 5):
        internet.ask(f"http://h{number}.example/v1", count=2)
    annotated = {host for host, headers in internet.hosts if headers}
    assert len(annotated) == origins.MAX_DISCOVERED
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "AUTELLIX_BASE_URL" in record.getMessage()
    # A backend that the user names is admitted whatever was there before.
    autellix.configure("http://gateway.example/v1")
    internet.ask("http://gateway.example/v1")
    assert internet.hosts[-1][1] != []


def test_hosts_that_are_no_backends_leave_nothing() -> None:
    registry = origins.BackendRegistry()
    registry.discover("http", "gateway.example", 80, "/v1/x")
    for number in range(100):
        registry.find("https", f"h{number}.example", None, "/v1/x")
    assert len(registry._backends) == 1
    assert registry.find("http", "gateway.example", 80, "/v1/x") is not None


def test_mark_that_comes_and_goes_changes_no_call(sdk: None) -> None:
    count = 0

    def answer(request: Any) -> Any:
        nonlocal count
        count += 1
        return HTTPX.Response(200, json={"choices": []}, headers=MARK if count % 2 else {})

    internet = Internet(answer)
    internet.ask("http://hostile.example/v1", count=6)
    assert [bool(headers) for _, headers in internet.hosts] == [False, True, True, True, True, True]


def test_unnamed_host_gets_a_proof_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another backend's proof, it could ask that one for the session's token."""
    monkeypatch.setenv("AUTELLIX_SESSION_PROOF", "secret")

    def proof(host: str, *, is_configured: bool = False) -> str:
        return origins.Backend(("http", host, 80), "", is_configured=is_configured).proof

    named = proof("gateway", is_configured=True)
    assert named == proof("other", is_configured=True) != "secret"
    assert len({proof("a.example"), proof("b.example"), named}) == 3
    assert proof("127.0.0.1") == proof("localhost")


@pytest.mark.parametrize(
    "fields",
    [
        {"call_id": "hostile-1", "text": "x" * 10_000},
        {"call_id": "hostile-1", "nested": {"a": ["b"] * 1000}},
        {"call_id": "hostile-1", **{f"field-{number}": 0 for number in range(100)}},
        {"call_id": "hostile-1", "huge": 10**1000},
        {"call_id": "h" * 10_000},
        {"call_id": ["hostile-1"]},
    ],
)
def test_receipt_that_is_large_is_not_kept(fields: dict[str, Any]) -> None:
    keep(fields)
    keep_comment(": autellix " + json.dumps(fields))
    assert kept("hostile-1") is None
    assert kept("h" * 10_000) is None


def test_comment_of_a_hostile_stream_is_ignored() -> None:
    for line in (": autellix {", ": autellix {" * 1000, ': autellix {"call_id": 1e999}', ": autellix [1]"):
        keep_comment(line)
    keep_comment(": autellix " + '{"a":' * 5000)
