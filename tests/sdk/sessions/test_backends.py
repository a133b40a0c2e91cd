"""Which origins get headers."""

from __future__ import annotations

import gc

import pytest

import autellix
from autellix import _environment
from autellix._sessions.backends import Backend, BackendRegistry, key_headers


def test_configured_origins_are_the_only_ones() -> None:
    backends = BackendRegistry()
    backends.configure(_environment.parse_base_urls("https://a.example.com/llm/v1, http://gateway:8000"))
    found = backends.find("https", "a.example.com", None, "/llm/v1/chat/completions")
    assert found is not None
    assert (found.origin, found.root) == (("https", "a.example.com", 443), "/llm")
    assert backends.find("http", "gateway", 8000, "/v1/x") is not None
    assert backends.find("http", "localhost", 8000, "/v1/x") is None
    assert backends.find("http", "gateway", 8001, "/v1/x") is None


def test_root_of_a_discovered_backend_is_read_from_the_call() -> None:
    backends = BackendRegistry()
    backends.discover("http", "localhost", 1, "/llm/v1/chat/completions")
    backends.discover("http", "localhost", 2, "/chat/completions")
    backends.discover("unix", "localhost", 3, "/v1/chat/completions")
    (found,) = backends.known()
    assert found.url == "http://localhost:1/llm"
    assert backends.find("http", "localhost", 1, "/llm/v1/x") is found
    assert backends.find("http", "localhost", 1, "/v1/x") is None
    assert backends.find("http", "localhost", 1, "/llm/v1/x", "/a.sock") is None


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/v1/chat/completions", ""),
        ("/tokenize", ""),
        ("/team-a/v1/", "/team-a"),
        ("/team-a/tokenize", "/team-a"),
        ("/team-a/inner/v1/x", None),
        ("/team-ab/v1/x", None),
        ("/api/v1/gateway/v1/x", "/api/v1/gateway"),
        ("/autellix/v1/sessions", None),
    ],
)
def test_backends_are_told_apart_by_their_roots(path: str, root: str | None) -> None:
    backends = BackendRegistry()
    backends.configure(
        _environment.parse_base_urls("http://h:1/v1,http://h:1/team-a/v1,http://h:1/api/v1/gateway/v1")
    )
    found = backends.find("http", "h", 1, path)
    assert (None if found is None else found.root) == root


def test_account_follows_the_keys_of_one_client() -> None:
    backend = Backend(("http", "gateway", 80), "", is_configured=True)
    account = first = backend.account(key_headers("0"))
    other = backend.account(key_headers("other"))
    for number in range(10):
        account = backend.account(key_headers(str(number)), account)
    assert account is first is backend.account(key_headers("9"))
    assert backend.account(key_headers("other"), account) is other
    assert backend.account(key_headers("0")) is not first


def test_accounts_that_nobody_uses_are_forgotten() -> None:
    backend = Backend(("http", "gateway", 80), "", is_configured=True)
    for number in range(100):
        backend.account(key_headers(str(number)))
    gc.collect()
    assert len(backend._accounts) == 0


@pytest.mark.parametrize("bad", ["gateway:8000", "ftp://gateway", "http://", "nonsense", "http://h:99999"])
def test_malformed_address_is_refused(bad: str) -> None:
    with pytest.raises(ValueError):
        autellix.configure(base_url=bad)


def test_malformed_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTELLIX_BASE_URL", "nonsense")
    assert _environment.configured_backends() == []
    monkeypatch.setenv("AUTELLIX_BASE_URL", "http://a:1, http://b:2/v1,")
    assert _environment.configured_backends() == [(("http", "a", 1), ""), (("http", "b", 2), "")]
