"""Which origins get headers."""

from __future__ import annotations

import pytest

import autellix
from autellix import _environment
from autellix._sessions.backends import FOREIGN, NO_KEY, Backend, BackendRegistry, is_near
from autellix._sessions.session import Registration


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.",
        "api.localhost",
        "gateway",
        "my-gateway",
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.31.0.1",
        "192.168.1.1",
        "169.254.1.1",
        "::1",
        "[::1]",
        "fd00::1",
        "fe80::1%eth0",
        "::ffff:10.0.0.1",
    ],
)
def test_near_hosts(host: str) -> None:
    assert is_near(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "api.openai.com",
        "example.com",
        "localhost.example.com",
        "gateway.prod",
        "8.8.8.8",
        "134744072",
        "0x8080808",
        "127.1",
        "172.32.0.1",
        "100.64.0.1",
        "2001:4860:4860::8888",
        "::ffff:8.8.8.8",
        "::",
    ],
)
def test_far_hosts(host: str) -> None:
    assert not is_near(host)


def test_configured_origins_are_the_only_ones() -> None:
    backends = BackendRegistry()
    backends.configure(_environment.parse_base_urls("https://a.example.com/llm/v1, http://gateway:8000"))
    found = backends.find("https", "a.example.com", None, "/llm/v1/chat/completions")
    assert found is not None
    assert (found.origin, found.root) == (("https", "a.example.com", 443), "/llm")
    assert backends.find("http", "gateway", 8000, "/v1/x") is not None
    assert backends.find("http", "localhost", 8000, "/v1/x") is None
    assert backends.find("http", "gateway", 8001, "/v1/x") is None


def test_root_of_a_near_origin_is_read_from_the_request() -> None:
    backends = BackendRegistry()
    mounted = backends.find("http", "localhost", 1, "/llm/v1/chat/completions")
    plain = backends.find("http", "localhost", 2, "/chat/completions")
    assert mounted is not None
    assert plain is not None
    assert (mounted.root, plain.root) == ("/llm", "")
    assert backends.find("unix", "localhost", 1, "/v1/") is None


def test_foreign_origin_gets_nothing() -> None:
    backends = BackendRegistry()
    backend = backends.find("http", "localhost", 1, "/v1/x")
    assert backend is not None
    backend.finish_probe(FOREIGN)
    assert backends.find("http", "localhost", 1, "/v1/x") is None


def test_attempts_at_an_unreachable_backend_get_rarer() -> None:
    account = Backend(("http", "gateway", 8000), "", is_configured=True).account(NO_KEY)
    registration = Registration(account, "s")
    pauses = []
    for _ in range(6):
        assert registration.is_due(now_s=registration.retry_at_s)
        registration.mark_unreachable(now_s=100.0)
        assert not registration.is_due(now_s=100.0)
        pauses.append(registration.retry_at_s - 100.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("bad", ["gateway:8000", "ftp://gateway", "http://", "nonsense", "http://h:99999"])
def test_malformed_address_is_refused(bad: str) -> None:
    with pytest.raises(ValueError):
        autellix.configure(base_url=bad)


def test_malformed_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTELLIX_BASE_URL", "nonsense")
    assert _environment.configured_backends() == {}
    monkeypatch.setenv("AUTELLIX_BASE_URL", "http://a:1, http://b:2/v1,")
    assert _environment.configured_backends() == {("http", "a", 1): "", ("http", "b", 2): ""}
