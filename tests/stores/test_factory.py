"""Which store the settings make."""

from __future__ import annotations

import sys
import time

import pytest

from autellix_backend.settings import Settings, SettingsError, StoreSettings
from autellix_backend.stores.base import ProgramStore
from autellix_backend.stores.factory import make_store
from autellix_backend.stores.fallback import FallbackStore
from autellix_backend.stores.memory import MemoryStore


def made(url: str) -> ProgramStore:
    settings = Settings(store=StoreSettings(url=url))
    return make_store(settings, session_ttl_s=30.0, clock=time.monotonic, on_fallback=lambda: None)


def test_the_address_decides() -> None:
    assert isinstance(made("memory://"), MemoryStore)
    assert isinstance(made("redis://localhost/0"), FallbackStore)


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("redis", "redis_scripts", "fallback"):
        monkeypatch.delitem(sys.modules, f"autellix_backend.stores.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(SettingsError, match=r"store.url.*pip install 'autellix-backend\[redis\] @ "):
        made("redis://localhost/0")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://:se/cret@host/0", "cannot be used; expected memory://, redis://HOST:PORT/NUMBER"),
        ("redis://host:99999", "has .*a port or an option that is no number.*; expected redis://"),
        ("redis://host?no_such_option=1", "has .*refuses.*no_such_option.*; expected redis://"),
        ("rediss://host?ssl_cert_reqs=maybe", "has .*refuses.*maybe.*; expected redis://"),
    ],
)
def test_an_address_that_cannot_be_read_is_named_without_its_password(url: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=f"store.url: {problem}") as caught:
        made(url)
    assert "'se'" not in str(caught.value)
